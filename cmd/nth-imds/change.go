package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// kind is a kind of what EC2 announces.
type kind struct {
	title    string
	values   []string // what can be announced of this kind; the first is the default
	announce func(s *imdstest.Server, value string, at time.Time)
	withdraw func(s *imdstest.Server)
}

// kinds are what can be announced, by the names that the commands take.
var kinds = map[string]kind{
	"spot": {
		"spot interruption", []string{"terminate", "stop", "hibernate"},
		func(s *imdstest.Server, action string, at time.Time) { s.SetSpot(action, at) },
		func(s *imdstest.Server) { s.ClearSpot() },
	},
	"rebalance": {
		"rebalance recommendation", []string{"noticed"},
		func(s *imdstest.Server, _ string, _ time.Time) { s.SetRebalance(time.Now()) },
		(*imdstest.Server).ClearRebalance,
	},
	"maintenance": {
		"maintenance", []string{"system-reboot", "instance-reboot", "system-maintenance", "instance-retirement", "instance-stop"},
		func(s *imdstest.Server, code string, at time.Time) {
			s.AddMaintenance(imdstest.MaintenanceEvent{Code: code, NotBefore: at, NotAfter: at.Add(2 * time.Hour)})
		},
		func(s *imdstest.Server) {
			const allIDs, noHistory = "", false // It leaves the schedule, and enters the history as canceled.
			s.WithdrawMaintenance(allIDs, noHistory)
		},
	},
	"lifecycle": {
		"target lifecycle state", []string{"Terminated", "InService", "Standby", "Detached"},
		func(s *imdstest.Server, state string, _ time.Time) { s.SetLifecycleState(state) },
		(*imdstest.Server).ClearLifecycleState,
	},
}

// change is what a command asks of the simulator.
type change struct {
	Kind, Value string        // from kinds; Value may be ""
	In          time.Duration // how long after the notice EC2 acts
	Withdraw    bool
}

// apply changes what the simulator announces, and returns a line that says what was done.
func (c change) apply(s *imdstest.Server) (done string, err error) {
	k, known := kinds[c.Kind]
	if !known {
		return "", fmt.Errorf("unknown KIND %q: must be one of %s", c.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	if c.Withdraw {
		k.withdraw(s)
		return k.title + " withdrawn", nil
	}
	value := cmp.Or(c.Value, k.values[0])
	if !slices.Contains(k.values, value) {
		return "", fmt.Errorf("unknown WHAT %q for %s: must be one of %s", value, c.Kind, strings.Join(k.values, ", "))
	}
	k.announce(s, value, time.Now().Add(c.In))
	return k.title + ": " + value, nil
}

// triggerCommand returns "trigger".
func triggerCommand() *cobra.Command {
	long := "Announces what EC2 announces. Several announcements can stand at once. KIND and WHAT, of which the first is the default:\n"
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		long += fmt.Sprintf("\n  %-12s %s", name, strings.Join(kinds[name].values, ", "))
	}
	cmd := &cobra.Command{Use: "trigger KIND [WHAT]", Short: "announce something", Long: long, Args: cobra.RangeArgs(1, 2)}
	in := cmd.Flags().Duration("in", 2*time.Minute, "how long after the notice EC2 acts")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what := strings.Join(args[1:], "") // one argument, or none
		return post(cmd, change{Kind: args[0], Value: what, In: *in})
	}
	return cmd
}

// withdrawCommand returns "withdraw".
func withdrawCommand() *cobra.Command {
	return &cobra.Command{
		Use: "withdraw KIND", Short: "take back what was announced", Args: cobra.ExactArgs(1),
		Long: "Takes back what was announced. Maintenance leaves the schedule and enters the history as canceled, as on EC2.",
		RunE: func(cmd *cobra.Command, args []string) error { return post(cmd, change{Kind: args[0], Withdraw: true}) },
	}
}

const (
	// controlPath is a path that EC2's service does not have. A change is posted to it, as JSON.
	controlPath = "/nth-imds/"
	// callTimeout is how long the simulator may take to answer.
	callTimeout = 10 * time.Second
)

// post posts a change to the simulator, and prints the answer. If the simulator refuses the change, its reason is the error.
func post(cmd *cobra.Command, c change) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	server := cmp.Or(os.Getenv("NTH_IMDS"), "http://"+defaultListen)
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodPost, server+controlPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Timeout: callTimeout}).Do(request)
	if err != nil {
		return fmt.Errorf("no nth-imds answers at %s: %w; start nth-imds, or set NTH_IMDS to the address of a running one", server, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("reading the answer of the simulator at %s: %w", server, err)
	case response.StatusCode == http.StatusBadRequest:
		return errors.New(strings.TrimSpace(string(answer)))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answered %s; set NTH_IMDS to the loopback address of an nth-imds on this machine", server, response.Status)
	}
	_, err = cmd.OutOrStdout().Write(answer)
	return err
}

// takeChanges returns the simulator's handler for controlPath. It applies the changes that other processes of this machine post, and calls changed
// with a line that says what was done.
func takeChanges(s *imdstest.Server, changed func(done string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		if !from.Addr().Unmap().IsLoopback() || r.Method != http.MethodPost {
			http.Error(w, "changes are taken only from the machine that nth-imds runs on", http.StatusForbidden)
			return
		}
		var c change
		err := json.NewDecoder(r.Body).Decode(&c)
		done := ""
		if err == nil {
			done, err = c.apply(s)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		changed(done)
		fmt.Fprintln(w, done)
	})
}
