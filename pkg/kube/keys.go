package kube

// KeyPrefix begins all keys that nth puts on Nodes, Pods, Leases and Events. It is a DNS name that the project owns, made from the module's
// path in go.mod. docs/release.md says how both are changed together.
const KeyPrefix = "nth-project.github.io/"

// Condition is the type of nth's own condition of Nodes.
const Condition = "InterruptionPending"

// Forgotten is the name of a manager in metadata.managedFields. The API server keeps the ten managers that wrote last, and puts the fields of all
// earlier ones under this name (NewCapManagersManager in pkg/util/managedfields of k8s.io/apimachinery).
const Forgotten = "ancient-changes"
