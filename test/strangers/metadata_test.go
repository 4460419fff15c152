package strangers

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// startMock starts amazon-ec2-metadata-mock at a port of this machine.
func startMock(t *testing.T, port string, arguments ...string) *exec.Cmd {
	t.Helper()
	if err := tools.Build(t.Context(), os.Stderr, "aemm"); err != nil {
		t.Fatal(err)
	}
	program, err := tools.Path("ec2-metadata-mock")
	if err != nil {
		t.Fatal(err)
	}
	mock := exec.Command(program, append(arguments, "--hostname", "127.0.0.1", "--port", port)...)
	mock.Stdout, mock.Stderr = io.Discard, io.Discard
	ended := make(chan struct{})
	if err := lab.StartBound(mock, func(error) { close(ended) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mock.Process.Kill() // fails only if it has ended
		<-ended
	})
	return mock
}

// freeAddress is one that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestMetadataMock_EachKindIsSeenAndDrained(t *testing.T) {
	const (
		drainForRebalance = "[events.rebalance-recommendation]\naction = \"drain\"\n"
		notified          = "nth drains for this code only if the settings say so"
		hibernated        = "the instance comes back with its pods: nth cordons"
	)
	version, err := tools.Version("aemm")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		arguments        []string
		settings, reason string
	}{
		"everything":                   {},
		"everything, by version 2":     {arguments: []string{"--imdsv2"}},
		"spot, terminate":              {arguments: []string{"spot"}},
		"spot, stop":                   {arguments: []string{"spot", "--action", "stop"}},
		"spot, hibernate":              {arguments: []string{"spot", "--action", "hibernate"}, reason: hibernated},
		"rebalance recommendation":     {arguments: []string{"spot", "--mock-delay-sec", "3600"}, settings: drainForRebalance},
		"maintenance, by its defaults": {arguments: []string{"events"}},
		"system-reboot":                {arguments: []string{"events", "--code", "system-reboot"}},
		"instance-reboot":              {arguments: []string{"events", "--code", "instance-reboot"}},
		"instance-stop":                {arguments: []string{"events", "--code", "instance-stop"}},
		"instance-retirement":          {arguments: []string{"events", "--code", "instance-retirement"}},
		"system-maintenance":           {arguments: []string{"events", "--code", "system-maintenance"}, reason: notified},
		"Auto Scaling's termination":   {arguments: []string{"asglifecycle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := lab.Shared(t).AddNode(t)
			node.AddDeployment(t, "web", 2)
			address := freeAddress(t)
			_, port, _ := strings.Cut(address, ":")
			startMock(t, port, c.arguments...)
			nth := daemon.NewMachine(t, daemon.Options{Kubeconfig: node.Kubeconfig, IMDS: "http://" + address, Settings: c.settings}).Start(t)
			nth.WaitLog(t, systemd.EventSeen)
			if c.reason == "" {
				node.WaitCordoned(t)
				node.WaitEmpty(t)
				nth.WaitLog(t, systemd.Drained)
			}
			nth.Stop(t)
			drained := len(nth.Logged(systemd.Drained)) > 0
			table.judge(t, "amazon-ec2-metadata-mock "+version+", kinds", name, drained, c.reason, fmt.Sprint(nth.Logged("")))
		})
	}
}
