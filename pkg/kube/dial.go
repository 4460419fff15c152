package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/loop"
)

const (
	// dialNext is the time between the attempts to connect to two addresses (RFC 8305, "Connection Attempt Delay").
	dialNext = 300 * time.Millisecond
	// mostAddresses is how many addresses of a name are tried, and mostNames how many names have their addresses remembered.
	mostAddresses, mostNames = 8, 16
)

// addresses are those to which each name was resolved last. They belong to the process, so that a client that replaces another one has
// them, too.
var addresses = struct {
	sync.Mutex
	of map[string][]netip.Addr
}{of: map[string][]netip.Addr{}}

// lastAddresses returns the addresses to which a name was resolved last; none if it never was.
func lastAddresses(host string) []netip.Addr {
	addresses.Lock()
	defer addresses.Unlock()
	return addresses.of[host]
}

// keepAddresses remembers the addresses of a name for when it cannot be resolved.
func keepAddresses(host string, found []netip.Addr) {
	addresses.Lock()
	defer addresses.Unlock()
	if len(addresses.of) >= mostNames { // It has the names of a handful of API servers and proxies at most, unless something is wrong.
		clear(addresses.of)
	}
	addresses.of[host] = found
}

// resolve looks up the addresses of a name in the background, and sends them once. The lookup continues when ctx ends: the next connection
// then finds the addresses remembered.
func resolve(ctx context.Context, host string) <-chan resolved {
	found := make(chan resolved, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Resolve)
		defer cancel()
		list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err == nil {
			keepAddresses(host, list)
		}
		found <- resolved{list, err}
	}()
	return found
}

// resolved is the result of a lookup.
type resolved struct {
	addresses []netip.Addr
	err       error
}

// dial makes a TCP connection to an address, "host:port"; the transport calls it. If the host's lookup fails, or takes longer than
// ResolveKnown, dial uses the addresses of an earlier lookup. If none of those answers, it waits for the lookup all the same.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return dialAny(ctx, network, []netip.Addr{ip}, port)
	}
	known, found := lastAddresses(host), resolve(ctx, host)
	if len(known) > 0 {
		late := time.NewTimer(ResolveKnown)
		defer late.Stop()
		select {
		case fresh := <-found:
			if fresh.err == nil { // Otherwise those of the earlier lookup have to do.
				known = fresh.addresses
			}
			return dialAny(ctx, network, known, port)
		case <-late.C:
			if conn, err := dialAny(ctx, network, known, port); err == nil {
				return conn, nil
			}
		}
	}
	select {
	case fresh := <-found:
		if fresh.err != nil {
			return nil, fresh.err
		}
		return dialAny(ctx, network, fresh.addresses, port)
	case <-ctx.Done():
		return nil, fmt.Errorf("looking up %s: %w", host, ctx.Err())
	}
}

// dialAny connects to the first of several addresses that answers. It tries one address after the other, dialNext apart. The attempts
// before continue meanwhile. The error is that of the first attempt that failed.
func dialAny(ctx context.Context, network string, to []netip.Addr, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Dial)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	dialer := net.Dialer{KeepAlive: 30 * time.Second}
	to = to[:min(len(to), mostAddresses)]
	for i, ip := range to {
		go func() {
			if !loop.Await(ctx, nil, time.Duration(i)*dialNext) {
				return // An earlier attempt has succeeded, or the time is over.
			}
			conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
			select {
			case results <- result{conn, err}:
			case <-ctx.Done(): // Nobody needs this connection any more.
				if err == nil {
					_ = conn.Close()
				}
			}
		}()
	}
	var failure error
	for range to {
		select {
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			failure = cmp.Or(failure, r.err)
		case <-ctx.Done():
			return nil, cmp.Or(failure, fmt.Errorf("connecting to %s port %s: no answer within %s", to[0], port, Dial))
		}
	}
	return nil, failure
}
