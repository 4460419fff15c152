// Package elbtest simulates Elastic Load Balancing (version 2) for tests: target groups, what is registered in them, and
// the part of the query protocol that is about that.
//
//	aws := elbtest.New()
//	web := aws.AddGroup("web", elbtest.Group{Delay: 3 * time.Second})
//	aws.Register(web, "i-0123", 30080)
//	aws.Deregister("i-0123") // it is draining now, and gone in three seconds
//
// A Service is an http.Handler. A request must look signed with version 4 of AWS's signature, by the
// credentials of a role. Targets drain as they do at AWS: by the clock, as seen by the next who asks. Calls are kept, and requests can be made to fail or refused
// (pkg/internal/querytest).
//
// Everything is safe for concurrent use, and works on the clock of testing/synctest.
package elbtest
