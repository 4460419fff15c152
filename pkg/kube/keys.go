package kube

// KeyPrefix begins all keys of ours on Nodes, Pods, Leases and Events. A prefix is a DNS name that the project owns. It follows from the
// module's path in go.mod; docs/release.md says how both are changed together.
const KeyPrefix = "nth-project.github.io/"
