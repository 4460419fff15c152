// Package migration turns the settings of aws-node-termination-handler, the container that drains nodes, into a
// configuration of nth.
//
// Read understands what people have at hand: an environment ("NAME=value" lines), the values of the Helm chart, or the
// DaemonSet itself as YAML or JSON. Each setting has one rule (rules.go), which says what it becomes here, or why it
// has no counterpart. Write puts the result down as an nth.toml that explains itself. Nothing that was set is passed
// over in silence.
package migration
