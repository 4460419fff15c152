package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/eks"
	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// pluginStart is about what the AWS CLI takes to start.
	pluginStart = time.Second
	// pluginTokens is how long the tokens of the plugin are good for: not so long that a notice finds one, and as long as nth
	// shows any.
	pluginTokens = 10 * time.Second
)

// slowPlugin makes a stand-in for the AWS CLI, and the kubeconfig of an EKS node that names it. The file that is
// returned has a line for each time that the plugin was run.
func slowPlugin(t *testing.T, cluster *eks.Cluster) (kubeconfig, calls string) {
	t.Helper()
	dir := t.TempDir()
	plugin, calls, kubeconfig := filepath.Join(dir, "aws"), filepath.Join(dir, "calls"), filepath.Join(dir, "kubeconfig")
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >>%s
sleep %f
echo '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "%s",
  "expirationTimestamp": "'$(date -u -d "@$(($(date +%%s) + %.0f))" +%%Y-%%m-%%dT%%H:%%M:%%SZ)'"}}'
`, calls, pluginStart.Seconds(), cluster.PluginToken, pluginTokens.Seconds())
	text, err := cluster.Kubeconfig(plugin)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{plugin: script, kubeconfig: text} {
		if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return kubeconfig, calls
}

// A notice that comes when the token has just expired waits for the plugin, or does not.
func TestATokenThatNthMakesWaitsForNoPlugin(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"auto", "plugin", "eks"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			node, metadata := lab.Shared(t).AddNode(t), imdstest.NewServer()
			t.Cleanup(metadata.Close)
			cluster := eks.New(t, node, metadata)
			kubeconfig, calls := slowPlugin(t, cluster)
			machine := daemon.NewMachine(t, daemon.Options{
				Kubeconfig: kubeconfig, IMDS: metadata.URL, Cadence: 50 * time.Millisecond,
				Settings: fmt.Sprintf("[kubernetes]\ntoken = %q\n", setting),
			})
			nth := machine.Start(t)
			nth.WaitWatching(t, node.Name)
			time.Sleep(pluginTokens) // until the plugin's token has expired
			cordoned := make(chan time.Time, 1)
			stop := node.Observe(t, func(m lab.Moment) {
				if m.What == lab.Cordoned {
					cordoned <- m.At
				}
			})
			defer stop()
			began := time.Now()
			metadata.SetSpot("terminate", twoMinutes())
			node.WaitCordoned(t)
			t.Logf("with a token of the %s, cordoned after %s", setting, (<-cordoned).Sub(began).Round(time.Millisecond))
			said, err := os.ReadFile(calls)
			if setting != "plugin" && (err == nil || cluster.Refused() != nil) {
				t.Errorf("the plugin was run: %s; refused: %v", said, cluster.Refused())
			}
			if setting == "plugin" && strings.Count(string(said), "get-token") < 2 {
				t.Errorf("the plugin was run as\n%swant twice: at the start, and for the notice", said)
			}
			nth.Stop(t)
		})
	}
}
