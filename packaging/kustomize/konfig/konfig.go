// Package konfig is empty. "go mod tidy" wants it, for tests of kubectl's libraries.
package konfig
