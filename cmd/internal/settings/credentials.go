package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/systemd"
)

// Credential is a credential that systemd passes to a service, by LoadCredential= and the like. The zero value stands for none.
type Credential struct {
	Name string
	// Source says where it comes from; "" in the service itself.
	Source string
	// File contains it, or Text is the credential. Both are "" if it cannot be read here.
	File, Text string
	// Sealed says why it cannot be read here, although nothing may be wrong.
	Sealed string
	// Fault says why the service does not get it, or does not start.
	Fault error
}

// String names the credential and its source.
func (c Credential) String() string {
	text := "the credential " + c.Name
	if c.Source != "" {
		text += " (" + c.Source + ")"
	}
	return text
}

// Given finds a credential by its name.
type Given func(name string) Credential

// Own finds credentials of this process.
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

// directory has the credentials of this process; "" if it has none.
func directory() string {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

// Where systemd looks for credentials without a path, in this order, and for encrypted ones.
var (
	stores       = []string{"/run/credentials/@system", "/etc/credstore", "/run/credstore", "/usr/local/lib/credstore", "/usr/lib/credstore"}
	sealedStores = []string{
		"/run/credentials/@encrypted", "/etc/credstore.encrypted", "/run/credstore.encrypted", "/usr/local/lib/credstore.encrypted",
		"/usr/lib/credstore.encrypted",
	}
)

// Unit has the settings of a service's unit that concern credentials.
type Unit struct {
	root, service string
	// load has the paths from LoadCredential=, set the texts from SetCredential=, and imports the patterns from ImportCredential=.
	load, set map[string]source
	imports   []string
	// stale: systemd has not reloaded the unit files since they changed. unknown says why the unit cannot be read.
	stale   bool
	unknown error
}

// Doubts says why the service may get other credentials than are found here, one line each.
func (u Unit) Doubts() []string {
	var doubts []string
	if u.stale {
		doubts = append(doubts, fmt.Sprintf("the unit files of %s changed on disk: run \"systemctl daemon-reload\"", u.service))
	}
	if u.unknown != nil {
		doubts = append(doubts, fmt.Sprintf("the credentials of %s are not known: %s", u.service, u.unknown))
	}
	return doubts
}

// source is a path or text, and whether the credential is encrypted.
type source struct {
	value  string
	sealed bool
}

// ReadUnit reads the unit of a service, below root ("" for "/"), for a command that operators run while the service runs. If systemd does not
// answer, or offline, the unit files are read. In the service itself, Find is Own.
func ReadUnit(ctx context.Context, root, service string, offline bool) Unit {
	u := Unit{root: root, service: service, load: map[string]source{}, set: map[string]source{}}
	if directory() != "" {
		return u
	}
	var lines []string
	var err error
	if !offline {
		lines, _, u.stale, err = logind.Host(root).Credentials(ctx, service)
	}
	if offline || err != nil {
		lines, _, err = systemd.ReadCredentials(root, service)
	}
	u.unknown = err
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		id, of, _ := strings.Cut(value, ":")
		switch name {
		case "LoadCredential", "LoadCredentialEncrypted":
			u.load[id] = source{of, name == "LoadCredentialEncrypted"}
		case "SetCredential", "SetCredentialEncrypted":
			u.set[id] = source{of, name == "SetCredentialEncrypted"}
		case "ImportCredential":
			if of == "" { // Otherwise it is renamed.
				u.imports = append(u.imports, id)
			}
		}
	}
	return u
}

// Find is a Given: it finds a credential as the service gets it.
func (u Unit) Find(name string) Credential {
	if directory() != "" {
		return Own(name)
	}
	c := Credential{Name: name}
	if from, named := u.load[name]; named {
		setting := "LoadCredential="
		if from.sealed {
			setting = "LoadCredentialEncrypted="
		}
		if filepath.IsAbs(from.value) {
			c.Source = fmt.Sprintf("%s of %s, %s", setting, u.service, from.value)
			return u.at(c, from)
		}
		if found, ok := u.stored(c, setting, cmp.Or(from.value, name)); ok {
			return found
		}
		c.Source = setting + " of " + u.service
		return u.without(c, "it is in none of the places where systemd looks for one without a path, such as "+stores[1])
	}
	for _, glob := range u.imports {
		if matches, _ := path.Match(glob, name); matches { // A malformed pattern matches nothing.
			if found, ok := u.stored(c, "ImportCredential=", name); ok {
				return found
			}
		}
	}
	if _, set := u.set[name]; set {
		return u.without(c, "")
	}
	return Credential{}
}

// at finds a credential at the path that the unit names.
func (u Unit) at(c Credential, from source) Credential {
	file := filepath.Join("/", u.root, from.value)
	found, err := os.Stat(file)
	_, set := u.set[c.Name]
	switch {
	case errors.Is(err, fs.ErrNotExist) && set:
		return u.without(c, "")
	case errors.Is(err, fs.ErrNotExist):
		c.Fault = fmt.Errorf("%s is not there: systemd does not start %s without it (status 243)", from.value, u.service)
		return c
	case err == nil && found.Mode()&fs.ModeSocket != 0:
		c.Sealed = "it comes from a socket, which only systemd asks"
		return c
	case err == nil && !found.Mode().IsRegular():
		c.Fault = fmt.Errorf("%s is not a file: systemd cannot read it for %s", from.value, u.service)
		return c
	}
	return u.readable(c, file, from.sealed)
}

// stored finds a credential where systemd looks for those without a path.
func (u Unit) stored(c Credential, setting, name string) (found Credential, ok bool) {
	for i, store := range slices.Concat(stores, sealedStores) {
		file := filepath.Join("/", u.root, store, name)
		if _, err := os.Stat(file); err == nil {
			c.Source = fmt.Sprintf("%s of %s, %s", setting, u.service, filepath.Join(store, name))
			return u.readable(c, file, i >= len(stores) || setting == "LoadCredentialEncrypted="), true
		}
	}
	return c, false
}

// readable checks that the file of a credential can be read and is not empty. The running service has the plain text of an encrypted one.
func (u Unit) readable(c Credential, file string, sealed bool) Credential {
	content, err := os.Open(file)
	if err == nil {
		defer func() { _ = content.Close() }() // It was only read.
		_, err = content.Read(make([]byte, 1))
	}
	switch running := filepath.Join("/", u.root, "run/credentials", u.service, c.Name); {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		c.Sealed = "only root may read it"
	case errors.Is(err, io.EOF):
		c.Fault = fmt.Errorf("%s is empty", file)
	case err != nil:
		c.Fault = err
	case !sealed:
		c.File = file
	case isFile(running):
		c.File = running
	default:
		c.Sealed = "it is encrypted, and only the service gets it in the clear"
	}
	return c
}

func isFile(path string) bool {
	found, err := os.Stat(path)
	return err == nil && found.Mode().IsRegular()
}

// without returns a credential without a file: the text in the unit, or none, with the reason why.
func (u Unit) without(c Credential, why string) Credential {
	text, set := u.set[c.Name]
	switch {
	case !set:
		c.Sealed = why
		return c
	case text.sealed:
		c.Source, c.Sealed = "SetCredentialEncrypted= of "+u.service, "it is encrypted, and only the service gets it in the clear"
		return c
	}
	c.Source = "SetCredential= of " + u.service
	if strings.Contains(text.value, `\`) {
		c.Sealed = "it is written with backslashes"
		return c
	}
	c.Text = text.value
	return c
}
