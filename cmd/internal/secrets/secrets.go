// Package secrets finds the credentials that systemd hands a service, by LoadCredential= and its like: for the service itself in the
// directory that it is given, and for a command that people run beside it at their sources, as the unit names them, so that what is
// missing there is found before the service needs it.
package secrets

import (
	"os"
	"path/filepath"
)

// Credential is one of them; the zero one is there for a service that is given none of that name.
type Credential struct {
	Name string
	// Source says in words where it comes from; empty in the service itself.
	Source string
	// File holds it, or Text is it. Both are empty where it cannot be read here.
	File, Text string
	// Sealed says why it cannot be read here, although nothing may be wrong with it.
	Sealed string
	// Fault is what keeps the service from it, or from starting.
	Fault error
}

// String names it.
func (c Credential) String() string {
	text := "the credential " + c.Name
	if c.Source != "" {
		text += " (" + c.Source + ")"
	}
	return text
}

// Given finds a credential by its name.
type Given func(name string) Credential

// Own finds those that this process has been given.
func Own(name string) Credential {
	dir := directory()
	if dir == "" {
		return Credential{}
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return Credential{}
	}
	return Credential{Name: name, File: path}
}

// directory is where those lie that this process has been given; empty if it is no such service.
func directory() string {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}
