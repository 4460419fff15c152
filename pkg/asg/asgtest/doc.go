// Package asgtest simulates Amazon EC2 Auto Scaling for tests: groups, their lifecycle hooks and instances, and the part
// of the query protocol that is about lifecycle actions.
//
//	aws := asgtest.NewServer()
//	defer aws.Close()
//	aws.AddGroup("workers", asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Second})
//	aws.AddInstance("workers", "i-0123")
//	aws.Terminate("i-0123") // it is Terminating:Wait now
//
// A Service is an http.Handler; a Server gives it a port. Hooks time out as they do at AWS: by the clock, as seen by the next who
// asks. What a request must look like, how calls are kept, and how requests are made to fail is in pkg/internal/querytest.
//
// Everything is safe for concurrent use, and works on the clock of testing/synctest.
package asgtest
