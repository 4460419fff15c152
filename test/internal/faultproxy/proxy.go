// Package faultproxy stands between nth and the API server and breaks what passes, when and where a test says so.
//
//	proxy := faultproxy.New(t, node)
//	// run nth with proxy.Kubeconfig
//	proxy.Fault(faultproxy.Fault{Kind: faultproxy.Status, Status: 429, RetryAfter: time.Second, Call: faultproxy.EvictPod})
//	proxy.AwaitMet(t, 3)
//	proxy.Lift()
//
// It ends the client's TLS and speaks HTTP/2 to both sides, as the API server does, so that it can break single calls
// (call.go) as well as connections (gate.go). To the API server it speaks with the node's own credential: what a
// kubelet may not do stays forbidden. It also remembers every call that passed, which is the truth about what nth asked
// for.
package faultproxy

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
)

// A Proxy is one way to the API server, for one client.
type Proxy struct {
	// Kubeconfig is the path of the node's kubeconfig, but that it leads to the proxy.
	Kubeconfig string

	gate    *gate
	forward *httputil.ReverseProxy
	faults  faults
	journal journal
	streams streams
}

// New opens a proxy to the API server of the node. It ends with the test.
func New(t lab.TB, node *lab.Node) *Proxy {
	t.Helper()
	forward, err := node.Forwarder()
	if err != nil {
		t.Fatalf("opening a proxy for %s: %v", node.Name, err)
	}
	p := &Proxy{forward: forward}
	p.forward.ModifyResponse = p.observe
	if p.gate, err = newGate(p.faults.meet); err != nil {
		t.Fatalf("opening a proxy for %s: %v", node.Name, err)
	}
	server := httptest.NewUnstartedServer(p)
	_ = server.Listener.Close()
	server.Listener = p.gate
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert} // which the API server checks in production
	server.Config.ConnContext = withConnection
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // what is broken on purpose need not be told
	server.StartTLS()
	t.Cleanup(func() {
		p.Lift()
		server.CloseClientConnections()
		server.Close()
		p.gate.release()
	})
	if p.Kubeconfig, err = lead(node, server); err != nil {
		t.Fatalf("opening a proxy for %s: %v", node.Name, err)
	}
	t.Cleanup(func() { _ = os.Remove(p.Kubeconfig) })
	return p
}

// lead writes the kubeconfig that leads to the server.
func lead(node *lab.Node, server *httptest.Server) (path string, err error) {
	config, err := clientcmd.LoadFromFile(node.Kubeconfig)
	if err != nil {
		return "", err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = server.URL
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	file, err := os.CreateTemp(filepath.Dir(node.Kubeconfig), node.Name+"-*.kubeconfig")
	if err != nil {
		return "", err
	}
	_ = file.Close() // it is written anew below
	return file.Name(), clientcmd.WriteToFile(*config, file.Name())
}

// Fault breaks what passes until Lift, or for as long as the fault says.
func (p *Proxy) Fault(f Fault) {
	p.faults.add(f, p.react)
	p.react()
	if f.Kind == WatchClose || f.Kind == WatchGone {
		p.streams.end()
	}
}

// Lift repairs everything. What a black hole has swallowed comes out again, as after a network partition.
func (p *Proxy) Lift() {
	p.faults.clear()
	p.react()
}

// react makes the gate do what the faults in force ask for.
func (p *Proxy) react() {
	p.gate.set(p.faults.inForce(Refuse), p.faults.inForce(BlackHole))
}

// AwaitMet waits until the faults have met so many more requests since it was called. It cannot see whom Refuse
// refuses.
func (p *Proxy) AwaitMet(t lab.TB, more int) {
	t.Helper()
	if err := p.faults.await(t.Context(), more); err != nil {
		t.Fatalf("%v", err)
	}
}

// Requests returns all requests so far that reached the proxy, in the order in which they began.
func (p *Proxy) Requests() []Request { return p.journal.all() }

// ServeHTTP breaks a request or passes it on.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := callOf(r)
	fault, broken := p.faults.match(call)
	entry := p.journal.begin(Request{Call: call, Path: r.URL.Path, Fault: fault.Kind})
	defer p.journal.end(entry)
	r = r.WithContext(withPassage(r.Context(), passage{entry: entry, fault: fault}))
	if broken {
		p.play(fault, entry, w, r)
		return
	}
	p.forward.ServeHTTP(w, r)
}
