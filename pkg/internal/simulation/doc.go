// Package simulation lets whole histories of a node happen to nth, and judges what it does. There is nothing in it but tests.
//
// A history is a plan: a list of happenings with their times, made from a seed (generate_test.go) or read from testdata. It is
// lived through in a bubble of testing/synctest, where hours take milliseconds, by the real policy, agent, drain and record. What
// is around them are stand-ins: pkg/drain/apitest for the API server, and for the metadata service, logind and the kubelet those
// of world_test.go. What is between nth and the API server (line_test.go) loses, delays and refuses requests.
//
// Judged is by invariants (invariants_test.go has their list), which know what is true in the world and what docs/ promise, and
// share nothing with the decisions of pkg/policy. Where what happens is too close together for one outcome to be right, all are;
// so a quarter of the plans are calm: a machine is lost in them, with time before it, and little else happens. At its end, "make
// simulate" says how often each invariant was judged.
//
//	go test ./pkg/internal/simulation       # the kept histories, and some hundreds of new ones, the same each time
//	make simulate SIMULATE=10m              # for as long as you like, on all cores
//	make reproduce SEED=42                  # one, with its story; if it fails, the shortest that still does
//
// A history that has found a mistake is kept in testdata, in the form in which it is printed. Goroutines take turns as they like,
// also in a bubble, so that one seed need not fail each time.
package simulation
