package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const (
	// controlPath is a path that EC2's service does not have. A command line is posted to it, as a JSON list of words.
	controlPath = "/nth-imds/"
	// callTimeout is how long the simulator may take to answer.
	callTimeout = 10 * time.Second
	// commandLimit and answerLimit bound what is read of a command line and of the simulator's answer, in bytes.
	commandLimit, answerLimit = 64 << 10, 1 << 20
)

// remoteCommands returns commands that post their command line to the simulator.
func remoteCommands() []*cobra.Command {
	var server string
	all := commands(func(cmd *cobra.Command, args []string, _ action) error {
		words := strings.Fields(cmd.CommandPath())[1:] // without "nth-imds"
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Name != "server" { // The simulator's commands lack this flag.
				words = append(words, "--"+f.Name+"="+f.Value.String())
			}
		})
		return post(cmd, server, append(words, args...))
	})
	for _, cmd := range all {
		cmd.PersistentFlags().StringVar(&server, "server", cmp.Or(os.Getenv("NTH_IMDS"), "http://"+defaultListen), "the URL of the simulator, or $NTH_IMDS")
	}
	return all
}

// post posts the words of a command line to the simulator, and prints the answer. If the simulator refuses the command, its reason is the error.
func post(cmd *cobra.Command, server string, words []string) error {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	body, err := json.Marshal(words)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodPost, strings.TrimSuffix(server, "/")+controlPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Timeout: callTimeout}).Do(request)
	if unreachable, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("no simulator answers at %s (%w): start \"nth-imds\", or set its address by --server or NTH_IMDS", server, unreachable.Err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return fmt.Errorf("reading the answer of the simulator at %s: %w", server, err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		_, err = cmd.OutOrStdout().Write(answer)
		return err
	case http.StatusBadRequest:
		return errors.New(strings.TrimSpace(string(answer)))
	default:
		return fmt.Errorf("%s answers %s: --server or NTH_IMDS must have the loopback address of an nth-imds on this machine", server, response.Status)
	}
}

// runPosted returns the simulator's handler for controlPath. It runs the command lines that other processes of this machine post. If a command
// changes something, the handler calls changed with a line that says what.
func runPosted(s *imdstest.Server, changed func(done string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		ip, err := netip.ParseAddr(host)
		fromHere := err == nil && ip.Unmap().IsLoopback()
		if !fromHere || r.Method != http.MethodPost {
			http.Error(w, "commands are taken only from the machine that nth-imds runs on", http.StatusForbidden)
			return
		}
		var words []string
		if err := json.NewDecoder(io.LimitReader(r.Body, commandLimit)).Decode(&words); err != nil {
			http.Error(w, "the command is no list of words", http.StatusBadRequest)
			return
		}
		root := &cobra.Command{Use: "nth-imds", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(commands(func(cmd *cobra.Command, args []string, do action) error {
			result, err := do(s, args)
			if err != nil {
				return err
			}
			if cmd.Name() != "show" { // "show" changes nothing.
				changed(result)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), result)
			return err
		})...)
		var stdout, stderr bytes.Buffer
		status := cli.Run(r.Context(), root, words, &stdout, &stderr, func(stderr io.Writer, err error) { fmt.Fprintln(stderr, err) })
		if status != cli.ExitOK {
			http.Error(w, stderr.String(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(stdout.Bytes()) // If the other process has ended, nobody needs the answer.
	})
}
