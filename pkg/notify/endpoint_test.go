package notify_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
)

// endpoint is a server that keeps what it is sent.
type endpoint struct {
	*httptest.Server
	requests chan *http.Request
	bodies   chan string
}

func serve(t *testing.T, start func(http.Handler) *httptest.Server, answer http.HandlerFunc) *endpoint {
	t.Helper()
	e := &endpoint{requests: make(chan *http.Request, 10), bodies: make(chan string, 10)}
	e.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.requests <- r
		e.bodies <- string(body)
		answer(w, r)
	}))
	e.Config.ErrorLog = nil
	t.Cleanup(e.Close)
	return e
}

func fine(http.ResponseWriter, *http.Request) {}

// destination is a notify.Destination whose files have these texts.
type destination struct {
	notify.Destination
	URL, Headers string
}

func to(url string) destination {
	return destination{notify.Destination{Timeout: 10 * time.Second, UserAgent: "nth/test"}, url, ""}
}

// post posts a text to a destination.
func post(ctx context.Context, t *testing.T, d destination, text string) error {
	t.Helper()
	if d.URL != "" {
		d.URLFile = file(t, d.URL)
	}
	if d.Headers != "" {
		d.HeadersFile = file(t, d.Headers)
	}
	e, err := notify.NewEndpoint(d.Destination)
	if err != nil {
		return err
	}
	return e.Post(ctx, "id-1", text)
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPost_SendsTheTextWithItsHeaders(t *testing.T) {
	t.Parallel()
	e := serve(t, httptest.NewServer, fine)
	d := to(e.URL + "/services/T0/B0?a=b")
	d.Headers = `{"Authorization": "Bearer one: two", "X-Team": "ops"}`
	if err := post(t.Context(), t, d, `{"a":1}`); err != nil {
		t.Fatal(err)
	}
	r := <-e.requests
	if r.Method != http.MethodPost || r.URL.String() != "/services/T0/B0?a=b" || <-e.bodies != `{"a":1}` {
		t.Errorf("sent was %s %s", r.Method, r.URL)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "nth/test", "X-Nth-Notice": "id-1",
		"Authorization": "Bearer one: two", "X-Team": "ops",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	d = to(e.URL + "\n")
	d.Headers = `{"Content-type":"text/plain", "X-Team": "ops"}` // as WEBHOOK_HEADERS of aws-node-termination-handler
	if err := post(t.Context(), t, d, "a"); err != nil {
		t.Fatal(err)
	}
	if r := <-e.requests; r.Header.Get("Content-Type") != "text/plain" || r.Header.Get("X-Team") != "ops" {
		t.Errorf("the headers are %v", r.Header)
	}
}

func TestPost_JudgesTheAnswer(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 202: "", 204: "",
		301: "the receiver answers 301 Moved Permanently: redirects are not followed",
		307: "the receiver answers 307 Temporary Redirect: redirects are not followed",
		400: "the receiver answers 400 Bad Request: it does not take this message",
		404: "the receiver answers 404 Not Found",
		500: "the receiver answers 500 Internal Server Error",
		599: "the receiver answers 599",
	} {
		elsewhere := serve(t, httptest.NewServer, fine)
		e := serve(t, httptest.NewServer, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(status)
		})
		got := ""
		if err := post(t.Context(), t, to(e.URL), "a"); err != nil {
			got = err.Error()
		}
		if got != want || len(elsewhere.requests) > 0 {
			t.Errorf("%d gives %q, want %q; %d requests elsewhere", status, got, want, len(elsewhere.requests))
		}
	}
}

func TestPost_TrustsTheCertificatesOfTheSystem(t *testing.T) {
	t.Parallel()
	e := serve(t, httptest.NewTLSServer, fine)
	if err := post(t.Context(), t, to(e.URL), "a"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an endpoint that nobody vouches for: %v", err)
	}
}

func TestPost_UsesNoProxyButThatOfTheSettings(t *testing.T) {
	proxy := serve(t, httptest.NewServer, fine)
	direct := serve(t, httptest.NewServer, fine)
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range []string{"http_proxy", "HTTP_PROXY", "all_proxy"} {
		t.Setenv(variable, proxy.URL)
	}
	if err := post(t.Context(), t, to(direct.URL), "direct"); err != nil || <-direct.bodies != "direct" {
		t.Errorf("without a proxy in the settings: %v", err)
	}
	for _, scheme := range []string{"tcp", "http"} {
		d := to("http://endpoint.invalid/path")
		d.Proxy = scheme + "://me:hunter2@" + at.Host
		if err := post(t.Context(), t, d, "proxied"); err != nil {
			t.Errorf("through %s://: %v", scheme, err)
			continue
		}
		r := <-proxy.requests
		if body := <-proxy.bodies; body != "proxied" || r.RequestURI != "http://endpoint.invalid/path" || r.Header.Get("Proxy-Authorization") == "" {
			t.Errorf("through %s://: the proxy got %s %q", scheme, r.RequestURI, body)
		}
	}
}

// Whatever goes wrong, neither the address nor what is in the headers is told.
func TestPost_ShowsNoSecretsInErrors(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	reset := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = connection.Close()
		}
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	// What answers need not be HTTP, or even a webhook: it may repeat a part of what it was sent, or spell it in another way.
	repeats := func(answer string) func(*destination) {
		server := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, answer)
				_ = connection.Close()
			}
		})
		return func(d *destination) { d.URL = server.URL + "/services/a%20b/hunter2" }
	}
	for name, test := range map[string]struct {
		ctx    context.Context
		change func(*destination)
	}{
		"refused":      {t.Context(), func(d *destination) { d.URL = "http://" + closed + "/hunter2" }},
		"reset":        {t.Context(), func(d *destination) { d.URL = reset.URL + "/hunter2?key=hunter2" }},
		"ended":        {ended, func(d *destination) { d.URL = reset.URL + "/hunter2" }},
		"unknown host": {t.Context(), func(d *destination) { d.URL = "https://me:hunter2@nobody.invalid/hunter2" }},
		"no answer in time": {t.Context(), func(d *destination) {
			d.URL, d.Timeout = serve(t, httptest.NewServer, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).URL+"/hunter2", 50*time.Millisecond
		}},
		"an endless header":  {t.Context(), repeats("HTTP/1.1 200 OK\r\nhunter2: " + strings.Repeat("a", 1<<20) + "\r\n\r\n")},
		"not parsed":         {t.Context(), func(d *destination) { d.URL = "http://hunter2\x7f" }},
		"another scheme":     {t.Context(), func(d *destination) { d.URL = "ftp://host/hunter2" }},
		"wrong proxy":        {t.Context(), func(d *destination) { d.Proxy = "ftp://hunter2" }},
		"a proxy's password": {t.Context(), func(d *destination) { d.Proxy = "http://hunter2/1@" + closed }},
		"header's value":     {t.Context(), func(d *destination) { d.Headers = `{"Authorization": "hunter2\\n"}` }},
		"header's name":      {t.Context(), func(d *destination) { d.Headers = `{"Not a name": "hunter2"}` }},
		"headers' file":      {t.Context(), func(d *destination) { d.Headers = "Authorization: hunter2" }},
		"headers' JSON":      {t.Context(), func(d *destination) { d.Headers = `{"Authorization": hunter2}` }},
		"no URL's file":      {t.Context(), func(d *destination) { d.URL, d.URLFile = "", "/nowhere/url" }},
		"long URL's file":    {t.Context(), func(d *destination) { d.URL = strings.Repeat("hunter2", 1<<16) }},
		"part of it":         {t.Context(), repeats("-ERR unknown command /services/a%20b/hunter\r\n")},
		"an odd redirect":    {t.Context(), repeats("HTTP/1.1 302 Found\r\nLocation: https://[/services/a+b/hunter2\r\n\r\n")},
		"a proxy's answer": {t.Context(), func(d *destination) {
			repeats("HTTP/1.1 407 not with me:hunter2\r\n\r\n")(d)
			d.Proxy, d.URL = strings.Replace(d.URL, "//", "//me:hunter2@", 1), "https://host.test/"
		}},
		"proxy's no proxy": {t.Context(), func(d *destination) { d.URL, d.Proxy = "https://host/hunter2", reset.URL }},
	} {
		t.Run(name, func(t *testing.T) {
			d := to("http://" + closed + "/hunter2")
			d.Headers = `{"Authorization": "Bearer hunter2"}`
			test.change(&d)
			err := post(test.ctx, t, d, "a")
			if err == nil {
				t.Fatal("it was posted")
			}
			if strings.Contains(err.Error(), "hunter") {
				t.Errorf("told is %q", err)
			}
			if outer, ok := errors.AsType[*url.Error](err); ok {
				t.Errorf("the URL can be unwrapped: %v", outer)
			}
			t.Log(err)
		})
	}
}

// A pipe without a writer hangs its reader, and what is endless or huge fills its memory.
func TestFiles_ThatAreNotRegularAreFaultsAtOnce(t *testing.T) {
	dir := t.TempDir()
	pipe, huge := filepath.Join(dir, "pipe"), file(t, "")
	for _, err := range []error{syscall.Mkfifo(pipe, 0o600), os.Truncate(huge, 1<<40)} { // The huge file is all hole.
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/dev/zero": "not a regular file", dir: "not a regular file", pipe: "not a regular file", huge: "longer than", dir + "/none": "no such file",
	} {
		url := file(t, "http://127.0.0.1:1")
		for what, d := range map[string]notify.Destination{
			"the address": {URLFile: path}, "the headers": {URLFile: url, HeadersFile: path},
		} {
			if _, err := notify.NewEndpoint(d); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s of %s: %v, want that it %s", what, path, err, want)
			}
		}
		if _, err := notify.ReadTemplate(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the template of %s: %v, want that it %s", path, err, want)
		}
	}
}
