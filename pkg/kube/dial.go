package kube

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dialNext is how long one address may be silent before the next one is tried as well (RFC 8305, "Connection Attempt Delay").
const dialNext = 300 * time.Millisecond

// mostAddresses is how many addresses of a name are tried, and mostNames of how many names the addresses are kept.
const mostAddresses, mostNames = 8, 16

// addresses are those to which each name was resolved last. They belong to the process: a client that replaces another one needs them
// as well.
var addresses = struct {
	sync.Mutex
	of map[string][]netip.Addr
}{of: map[string][]netip.Addr{}}

// lastAddresses returns the addresses to which a name was resolved last.
func lastAddresses(host string) []netip.Addr {
	addresses.Lock()
	defer addresses.Unlock()
	return addresses.of[host]
}

// keepAddresses remembers the addresses of a name for when it cannot be resolved.
func keepAddresses(host string, found []netip.Addr) {
	addresses.Lock()
	defer addresses.Unlock()
	if len(addresses.of) >= mostNames {
		clear(addresses.of)
	}
	addresses.of[host] = found
}

// resolve looks up the addresses of a name, for this connection and those after it: the lookup continues when ctx ends.
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

type resolved struct {
	addresses []netip.Addr
	err       error
}

// dial makes a connection. Where a name is not resolved soon, or not at all, it uses the addresses to which it was resolved before. If
// none of those answers, it keeps waiting for the lookup.
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
			if fresh.err == nil {
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

// dialAny connects to the first address that answers. Each further address is tried when the one before has failed or been silent.
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
	next := time.NewTimer(0)
	defer next.Stop()
	var failure error
	for begun, ended := 0, 0; ended < len(to); {
		select {
		case <-next.C:
			if begun == len(to) {
				continue
			}
			address := net.JoinHostPort(to[begun].Unmap().String(), port)
			begun++
			go func() {
				conn, err := dialer.DialContext(ctx, network, address)
				select {
				case results <- result{conn, err}:
				case <-ctx.Done(): // Another one was first, or it is too late.
					if err == nil {
						_ = conn.Close()
					}
				}
			}()
			next.Reset(dialNext)
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			ended++
			if failure == nil {
				failure = r.err
			}
			next.Reset(0)
		case <-ctx.Done():
			if failure == nil {
				failure = fmt.Errorf("connecting to %s port %s: no answer within %s", to[0], port, Dial)
			}
			return nil, failure
		}
	}
	return nil, failure
}
