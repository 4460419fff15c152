// Package faultproxy stands between a client and the API server and breaks the way there when a test says so.
//
//	proxy := faultproxy.New(t, node.Kubeconfig)
//	// run nth with proxy.Kubeconfig
//	proxy.Fault(faultproxy.Fault{Kind: faultproxy.BlackHole})
//	proxy.AwaitMet(t, 2)
//	proxy.Lift()
//
// It passes bytes on and looks into none: the client speaks TLS with the API server itself. What an API server answers when it refuses,
// throttles or fails is judged in the packages that read those answers.
package faultproxy

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
)

// Kind is one way in which the way to the API server can break.
type Kind string

const (
	// Refuse resets all connections, new ones at once.
	Refuse Kind = "refuse"
	// BlackHole accepts connections and lets nothing through, in either direction, on these and on older ones.
	BlackHole Kind = "black hole"
	// Reset resets a connection in place of the next part of an answer.
	Reset Kind = "reset"
	// Cut resets a connection in the middle of the next part of an answer.
	Cut Kind = "cut"
	// Latency holds each part of a request and of an answer for a while.
	Latency Kind = "latency"
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Refuse, BlackHole, Reset, Cut, Latency} }

// latency is for how long Latency holds each part.
const latency = 200 * time.Millisecond

// Fault is one breakage; the zero value is none. It is in force for a time, or until Lift if For is 0.
type Fault struct {
	Kind Kind
	For  time.Duration
}

// A Proxy is one way to the API server.
type Proxy struct {
	// Kubeconfig is the path of the client's kubeconfig, but that it leads to the proxy.
	Kubeconfig string

	server  string // address of the API server
	running sync.WaitGroup

	mu      sync.Mutex
	fault   Fault
	lifting *time.Timer
	met     int           // parts that the fault has met
	changed chan struct{} // closed when fault changes
	open    map[*net.TCPConn]bool
}

// New opens a proxy to the API server of the kubeconfig. It ends with the test.
func New(t lab.TB, kubeconfig string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("opening a proxy: %v", err)
	}
	p := &Proxy{changed: make(chan struct{}), open: map[*net.TCPConn]bool{}}
	if err := p.lead(kubeconfig, listener.Addr().String()); err != nil {
		t.Fatalf("opening a proxy: %v", err)
	}
	p.running.Go(func() { p.accept(listener) })
	t.Cleanup(func() {
		_ = listener.Close() // nobody waits for what it says
		p.Fault(Fault{Kind: Refuse})
		p.running.Wait()
		_ = os.Remove(p.Kubeconfig)
	})
	return p
}

// lead writes the kubeconfig that leads to the proxy.
func (p *Proxy) lead(kubeconfig, address string) error {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	p.server = rest.Host[len("https://"):]
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + address
	}
	p.Kubeconfig = fmt.Sprintf("%s-by-%s", kubeconfig, address)
	return clientcmd.WriteToFile(*config, p.Kubeconfig)
}

// Lift repairs everything. What a black hole has swallowed comes out again, as after a network partition.
func (p *Proxy) Lift() { p.Fault(Fault{}) }

// Fault breaks the way, in place of what is broken already.
func (p *Proxy) Fault(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lifting != nil {
		p.lifting.Stop()
	}
	if p.fault = f; f.For > 0 {
		p.lifting = time.AfterFunc(f.For, p.Lift)
	}
	if f.Kind == Refuse {
		for c := range p.open {
			reset(c)
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// reset ends a connection in such a way that the other side gets an error.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if it is closed already
	_ = c.Close()
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.carry(c.(*net.TCPConn)) })
	}
}

// carry passes on what is on a connection until one side ends it.
func (p *Proxy) carry(client *net.TCPConn) {
	p.mu.Lock()
	p.open[client] = true
	refused := p.fault.Kind == Refuse
	p.mu.Unlock()
	if !refused {
		p.join(client)
	}
	reset(client)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, client)
}

// join passes on what is on a connection, in both directions.
func (p *Proxy) join(client *net.TCPConn) {
	dialed, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	server := dialed.(*net.TCPConn)
	var both sync.WaitGroup
	both.Go(func() { p.pump(server, client, client) })
	p.pump(client, server, client)
	_ = server.Close()
	both.Wait()
}

// pump passes on what comes from one side, as the fault of the moment has it. It ends the client's connection when it ends.
func (p *Proxy) pump(to, from, client *net.TCPConn) {
	defer func() { _ = client.Close(); _ = to.Close() }()
	part := make([]byte, 32<<10)
	for {
		n, err := from.Read(part)
		if err != nil {
			return
		}
		switch kind := p.meet(to == client); kind {
		case Refuse, Reset:
			reset(client)
			return
		case Cut:
			_, _ = to.Write(part[:n/2]) // the client may have left
			reset(client)
			return
		case Latency:
			time.Sleep(latency)
		}
		if _, err := to.Write(part[:n]); err != nil {
			return
		}
	}
}

// meet returns what becomes of a part of an answer or of a request. In a black hole it waits until that has ended.
func (p *Proxy) meet(answer bool) Kind {
	counted := false
	for {
		p.mu.Lock()
		kind, changed := p.fault.Kind, p.changed
		if kind == "" || !answer && (kind == Reset || kind == Cut) {
			p.mu.Unlock()
			return ""
		}
		if !counted {
			counted = true
			p.met++
		}
		p.mu.Unlock()
		if kind != BlackHole {
			return kind
		}
		<-changed
	}
}

// AwaitMet waits until the faults have met so many more parts of requests and answers since it was called. It cannot see whom Refuse
// refuses.
func (p *Proxy) AwaitMet(t lab.TB, more int) {
	t.Helper()
	met := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.met
	}
	begin := met()
	lab.Await(t, fmt.Sprintf("%d more requests have met a fault", more), func() bool { return met() >= begin+more })
}
