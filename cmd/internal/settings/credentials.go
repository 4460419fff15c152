package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nth-project/nth/pkg/systemd"
)

// Credential is a credential that systemd passes to a service, by LoadCredential= and the like. The zero value stands for none.
type Credential struct {
	Name string
	// Source says where it comes from; "" in the service itself.
	Source string
	// File contains it; "" if it cannot be read here.
	File string
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

// blank is the text of SetCredential= with which a unit says that the file of LoadCredential= may be missing: a line's end, as the unit escapes
// it. systemd refuses an empty text.
const blank = `\n`

// Own is the Given of a service: it finds the credentials that systemd has passed to this process.
func Own(name string) Credential {
	dir := directory()
	if dir == "" {
		return Credential{}
	}
	path := filepath.Join(dir, name)
	found, err := os.Stat(path)
	if err != nil || isBlank(found) { // blank stands in for a missing file.
		return Credential{}
	}
	return Credential{Name: name, File: path}
}

// directory returns the directory with the credentials of this process; "" if systemd has passed none.
func directory() string {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

// Unit has the settings of a service's unit that concern credentials.
type Unit struct {
	root, service string
	given         map[string]source // by the name of the credential
	unknown       error             // why the unit cannot be read
}

// source is where a unit has a credential from.
type source struct {
	setting string // the last one that names it, such as LoadCredential; of SetCredential= only if no other does
	path    string // the file that LoadCredential= or LoadCredentialEncrypted= names; "" for other settings
	// set is whether SetCredential= or SetCredentialEncrypted= has a text that stands in for a missing file, and optional whether that
	// text is blank: then the service starts without the file, and does not get the credential.
	set, optional bool
}

// Doubt says why the service may get other credentials than Find finds; "" if it gets the same.
func (u Unit) Doubt() string {
	if u.unknown == nil {
		return ""
	}
	return fmt.Sprintf("the credentials of %s are not known: %s", u.service, u.unknown)
}

// ReadUnit reads the files of a service's unit, below root ("" for "/"), for a command that operators run while the service runs. In the
// service itself, Find is Own.
func ReadUnit(root, service string) Unit {
	u := Unit{root: root, service: service, given: map[string]source{}}
	if directory() != "" {
		return u // This process is the service.
	}
	var lines []string
	lines, u.unknown = systemd.ReadCredentials(root, service)
	for _, line := range lines {
		setting, value, _ := strings.Cut(line, "=")
		name, content, _ := strings.Cut(value, ":") // content is a path or a text
		from := u.given[name]
		isText := strings.HasPrefix(setting, "Set")
		if isText {
			from.set, from.optional = content != blank, content == blank
		} else {
			from.path = content
		}
		if !isText || from.setting == "" || strings.HasPrefix(from.setting, "Set") { // systemd prefers the file to the text.
			from.setting = setting
		}
		u.given[name] = from
	}
	return u
}

// sealed is why a credential cannot be read here that is encrypted, or comes from elsewhere than a file.
const sealed = "only the service gets it"

// Find is a Given: it finds a credential as the service gets it. A credential that does not come from a plain file is read from the directory in
// which systemd has put it for the running service.
func (u Unit) Find(name string) Credential {
	if directory() != "" {
		return Own(name)
	}
	c := Credential{Name: name}
	from, named := u.given[name]
	if named {
		c.Source = from.setting + "= of " + u.service
	}
	if filepath.IsAbs(from.path) {
		c.Source += ", " + from.path
		c = u.load(c, from)
	}
	running := filepath.Join("/", u.root, "run/credentials", u.service, name)
	switch {
	case c.File != "" || c.Sealed != "" || c.Fault != nil: // load has found out all.
	case hasText(running): // ImportCredential= may have found it.
		c.Source, c.File = cmp.Or(c.Source, "of "+u.service), running
	case named && !(from.optional && strings.HasPrefix(from.setting, "Set")): // Otherwise blank is all that the unit has.
		c.Sealed = sealed
	default:
		return Credential{}
	}
	return c
}

// load looks at the file that the unit names for a credential. It returns c with File set if the file can be read here, or with Sealed or Fault
// set. If it returns c unchanged, Find looks at what the running service got.
func (u Unit) load(c Credential, from source) Credential {
	file := filepath.Join("/", u.root, from.path)
	found, err := os.Stat(file)
	if err == nil && found.Mode().IsRegular() {
		err = readable(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && from.set: // systemd takes the text of SetCredential=.
	case errors.Is(err, fs.ErrNotExist) && from.optional:
		c.Fault = fmt.Errorf("%s is not there", from.path)
	case errors.Is(err, fs.ErrNotExist):
		c.Fault = fmt.Errorf("%s is not there: systemd does not start %s without it (status 243)", from.path, u.service)
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		c.Sealed = "only root may read it"
	case err != nil:
		c.Fault = err
	case found.Mode()&fs.ModeSocket != 0: // systemd asks the process that listens there, at each start.
	case !found.Mode().IsRegular():
		c.Fault = fmt.Errorf("%s is not a file: systemd cannot read it for %s", from.path, u.service)
	case from.setting == "LoadCredential": // LoadCredentialEncrypted names a file that only the service gets decrypted.
		c.File = file
	}
	return c
}

// readable says why a file cannot be read, or that it is empty.
func readable(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // It was only read.
	if _, err = file.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s is empty", name)
	}
	return err
}

// hasText reports whether a path is that of a credential that systemd has passed to a service, and not of blank.
func hasText(path string) bool {
	found, err := os.Stat(path)
	return err == nil && found.Mode().IsRegular() && !isBlank(found)
}

// isBlank reports whether a file has no more than systemd makes of blank.
func isBlank(found fs.FileInfo) bool {
	return found.Mode().IsRegular() && found.Size() <= int64(len("\n"))
}
