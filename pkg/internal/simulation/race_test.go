//go:build race

package simulation_test

// raced tells that the race detector watches, which makes a history take ten times as long.
const raced = true
