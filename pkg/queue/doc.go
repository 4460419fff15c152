// Package queue is an event source: an SQS queue, as EventBridge, Auto Scaling and SNS fill it.
//
// Parse reads a message: what it says of which instances. It is pure, and has a verdict for everything else, too: what
// concerns nobody here is deleted, and what cannot be understood is told once and left to the dead-letter queue.
//
// A Lease is a message that is held while its work is done. The Queue keeps it from other consumers by extending its
// visibility, until the work is Done, which deletes it, or until it is to be Returned. Deletions are repeated until they
// hold. What a consumer cannot rely on with SQS is taken as it is: a message may come twice, its visibility may be lost
// while the work goes on, and its receipt handle may be stale; it is then known by its ID when it comes again.
package queue
