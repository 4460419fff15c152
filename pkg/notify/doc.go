// Package notify passes on what happens, to the cluster and to people.
//
// Its parts are agent.Listeners: each is told every record.Happening and must not hold the agent up. So Hear only
// writes down what there is to say, in a queue that is bounded, and Run, in a goroutine of its own, says it: best
// effort, bounded in time, with pauses where it is refused, and with a last short try when nth stops. Nothing here
// can fail a drain, and nothing is said before the cordon that it is about.
//
//   - Kubernetes keeps the Node's condition InterruptionPending and, where it is asked to, the lifecycle conditions that
//     Kubernetes knows, and writes core/v1 Events about the Node and about the pods that were evicted. What it writes is
//     listed in docs/node-contract.md.
//   - Webhook posts a document that a template makes, and remembers on disk what could not be delivered yet.
//
// What goes wrong is told once, to the callback Trouble, and not again until it has been well in between.
package notify
