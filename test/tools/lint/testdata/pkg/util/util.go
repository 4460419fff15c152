// Package util fits everything.
package util // want revive
