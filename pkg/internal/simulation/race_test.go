//go:build race

package simulation_test

// raced: the race detector is on, which makes a history take ten times as long.
const raced = true
