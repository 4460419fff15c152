// Package simulation plays random histories of a node against nth's core, and judges what nth does. It has tests only.
//
// A history is a plan: a list of happenings with their times, made from a seed (generate_test.go) or read from testdata. It happens
// in a bubble of testing/synctest, where hours take milliseconds, to the real policy, agent, drain and record. Everything around them is
// a stand-in: pkg/drain/apitest for the API server, and world_test.go for the metadata service, logind and the kubelet. Requests pass
// line_test.go, which loses, delays and refuses some.
//
// The judge goes by invariants, which invariants_test.go lists. It knows what is true in the world and what docs/ promise, and shares
// nothing with the decisions of pkg/policy. Where things happen close together, several outcomes are right, and it accepts them all. So a
// quarter of the plans are calm: the machine will be lost, nth has time before that, and little else happens. At its end, "make simulate"
// says how often each invariant was judged.
//
//	go test ./pkg/internal/simulation       # the kept histories, and some hundreds of new ones, the same each time
//	make simulate SIMULATE=10m              # for as long as you like, on all cores
//	make reproduce SEED=42                  # one, with its story; if it fails, the shortest that still does
//	make replay TRACES=dir                  # those of a node that is preempted as in a recorded trace, and comes back
//
// A history that has found a mistake is kept in testdata, as it is printed. The scheduler of goroutines is random even in a bubble: a
// seed need not fail each time.
//
// Newcomers begin with world.live.
package simulation
