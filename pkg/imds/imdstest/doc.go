// Package imdstest simulates EC2's instance metadata service, version 2, for tests and for rehearsals.
//
// A test starts a Server on a free port, as it would with net/http/httptest, lets EC2 announce something, and breaks
// the service where it likes:
//
//	srv := imdstest.NewServer()
//	defer srv.Close()
//	srv.SetSpot("terminate", time.Now().Add(2*time.Minute))
//	srv.Fault(imdstest.Fault{Kind: imdstest.Hang})
//	srv.Lift()
//
// What is served lies in a Simulator: the machine (machine.go), announcements (announce.go, maintenance.go), faults (fault.go,
// play.go) and counts of the traffic (traffic.go); the documents, the tokens and the protocol's rules are those of
// pkg/imds/standin. A Simulator is an http.Handler. A Server gives it a port, which it can also close and reopen,
// and mounts the control API (control.go) below /nth-imds/, a path that EC2 does not have. The command nth-imds runs
// a Server and speaks to it with a Client, and so can any test that drives a simulator in another process.
//
// Everything is safe for concurrent use. A change is visible to every request that begins after the call returned.
package imdstest
