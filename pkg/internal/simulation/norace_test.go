//go:build !race

package simulation_test

// raced: the race detector is on.
const raced = false
