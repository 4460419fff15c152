package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/debian"
)

// The template of the container-based handler's own test.
const peerTemplate = `{"Content":"[NTH][Instance Interruption] InstanceId: {{ .InstanceID }} - Node: {{ .NodeName }} - InstanceType: ` +
	`{{ .InstanceType }} - AvailabilityZone: {{ .AvailabilityZone }} - Kind: {{ .Kind }} - Start Time: {{ .StartTime }}"}`

func TestPeer16AWebhookIsToldOfAnInterruption(t *testing.T) {
	e := newEndpoint(t)
	s := play(t, fmt.Sprintf("[webhook]\nurl = %q\ntemplate = '''%s'''\n", e.url(), peerTemplate))
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	e.await(t, "two notices", func() bool { return len(e.taken) == 2 })
	said, _ := e.taken[0].parse(t)["Content"].(string)
	for _, want := range []string{" - Node: " + s.node.Name + " - ", " - Kind: SPOT_ITN - ", "InstanceId: i-", " - AvailabilityZone: eu-"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in the notice %q", want, said)
		}
	}
	s.mustKeepSecret(t)
}

func TestPeer18AWebhookIsReachedThroughASquid(t *testing.T) {
	squid := newSquid(t)
	e := newEndpoint(t)
	s := play(t, e.settings()+fmt.Sprintf("proxy = %q\n", "tcp://"+squid.address))
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	e.waitFor(t, "spot-interruption announced", "spot-interruption drained")
	hook, err := url.Parse(e.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	squid.waitLog(t, "POST http://"+hook.Host+"/")
	if e.taken[0].header.Get("Via") == "" {
		t.Errorf("the notice did not come through a proxy: %v", e.taken[0].header)
	}
	s.mustKeepSecret(t)
}

// mustKeepSecret fails the test if the endpoint's URL is where people or other programs could read it.
func (s *stage) mustKeepSecret(t *testing.T) {
	t.Helper()
	s.nth.Stop(t)
	for _, e := range s.nth.Logged("") {
		if strings.Contains(e.Message+fmt.Sprint(e.Fields), "hunter2") {
			t.Errorf("nth said %q %v", e.Message, e.Fields)
		}
	}
	if got := s.machine.Command(t, "config"); strings.Contains(got.Stdout+got.Stderr, "hunter2") {
		t.Errorf("nth config says\n%s%s", got.Stdout, got.Stderr)
	}
}

// nobody is a user without rights.
const nobody = 65534

// squid is a real one, which logs to a file.
type squid struct{ address, log string }

func newSquid(t *testing.T) squid {
	t.Helper()
	tree := debian.New(t, "squid")
	dir := t.TempDir()
	// squid does not want to be root.
	if err := errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Dir(dir), 0o711)); err != nil {
		t.Fatal(err)
	}
	s := squid{freeAddress(t), filepath.Join(dir, "access.log")}
	settings := fmt.Sprintf(`http_port %s
http_access allow all
access_log stdio:%s
cache_log %s/cache.log
cache deny all
pid_filename none
cache_effective_user nobody
coredump_dir %s
logfile_rotate 0
buffered_logs off
pinger_enable off
netdb_filename none
mime_table %s/usr/share/squid/mime.conf
error_directory %s/usr/share/squid/errors/templates
icon_directory %s/usr/share/squid/icons
unlinkd_program /bin/true
`, s.address, s.log, dir, dir, tree.Root, tree.Root, tree.Root)
	file := filepath.Join(dir, "squid.conf")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	tree.Start(t, "squid", "-N", "-f", file, "-d", "1", "-n", fmt.Sprintf("nth%d", time.Now().UnixNano()))
	poll(t, "squid answers", func() bool {
		connection, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
	return s
}

// waitLog waits until squid has written what it did.
func (s squid) waitLog(t *testing.T, text string) {
	t.Helper()
	poll(t, "squid logs "+text, func() bool {
		log, err := os.ReadFile(s.log)
		return err == nil && strings.Contains(string(log), text)
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// poll waits until something is so that nobody tells.
func poll(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for range 300 {
		if isSo() {
			return
		}
		select {
		case <-t.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("it is not so that %s", what)
}
