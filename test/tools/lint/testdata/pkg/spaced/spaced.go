// Package spaced is not formatted.
package spaced

// A is one.
var A = 1 // want gofmt
