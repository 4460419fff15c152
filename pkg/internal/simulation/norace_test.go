//go:build !race

package simulation_test

// raced tells that the race detector watches.
const raced = false
