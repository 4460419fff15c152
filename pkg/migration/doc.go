// Package migration turns the settings of aws-node-termination-handler, the container that drains nodes, into a
// configuration of nth.
//
// Read understands what people have at hand: an environment ("NAME=value" lines), the values of the Helm chart, or the
// DaemonSet itself as YAML or JSON, with its arguments and the ConfigMaps and Secrets that it takes settings from. Each setting
// has one rule (rules.go), which says what it becomes here, or why it has no counterpart. For makes of them a file for nth, or for
// nth-queue, that explains itself. Nothing that was set is passed over in silence, and no secret is shown.
package migration
