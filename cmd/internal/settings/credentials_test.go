package settings_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nth-project/nth/cmd/internal/settings"
)

// machine makes a file system with the unit nth.service and files, whose names end with a slash for directories.
func machine(t *testing.T, unit string, files map[string]string) string {
	t.Helper()
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	root := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("usr/lib/systemd/system/nth.service", "[Service]\nExecStart=/usr/bin/nth run\n")
	put("etc/systemd/system/nth.service.d/50-webhook.conf", "[Service]\n"+unit+"\n")
	for path, text := range files {
		put(path, text)
	}
	return root
}

func TestUnit_FindsWhatTheServiceGets(t *testing.T) {
	const missing = "is not there: systemd does not start nth.service without it (status 243)"
	const url = "LoadCredential= of nth.service, /etc/url"
	const encrypted = "LoadCredentialEncrypted= of nth.service, /etc/url"
	const only = "only the service gets it"
	for name, row := range map[string]struct {
		unit  string
		files map[string]string
		want  settings.Credential // its File below the root
		fault string
	}{
		"none":                       {unit: "LoadCredential=other:/etc/url"},
		"a file":                     {unit: "LoadCredential=a:/etc/url", files: map[string]string{"etc/url": "x"}, want: settings.Credential{Source: url, File: "etc/url"}},
		"a file that is named later": {unit: "LoadCredential=a:/etc/old\nLoadCredential=a:/etc/url", files: map[string]string{"etc/url": "x"}, want: settings.Credential{Source: url, File: "etc/url"}},
		"a missing file":             {unit: "LoadCredential=a:/etc/url", want: settings.Credential{Source: url}, fault: "/etc/url " + missing},
		"a missing file with a text": {unit: "LoadCredential=a:/etc/url\nSetCredential=a:none: at all", want: settings.Credential{Source: url, Sealed: only}},
		"a file that may be missing": {unit: "LoadCredential=a:/etc/url\nSetCredential=a:\\n", want: settings.Credential{Source: url}, fault: "/etc/url is not there"},
		"an empty file":              {unit: "LoadCredential=a:/etc/url", files: map[string]string{"etc/url": ""}, want: settings.Credential{Source: url}, fault: "/etc/url is empty"},
		"a directory":                {unit: "LoadCredential=a:/etc/url", files: map[string]string{"etc/url/a": "x"}, want: settings.Credential{Source: url}, fault: "/etc/url is not a file"},
		"an encrypted file":          {unit: "LoadCredentialEncrypted=a:/etc/url", files: map[string]string{"etc/url": "x"}, want: settings.Credential{Source: encrypted, Sealed: only}},
		"an encrypted file, running": {unit: "LoadCredentialEncrypted=a:/etc/url", files: map[string]string{"etc/url": "x", "run/credentials/nth.service/a": "text"}, want: settings.Credential{Source: encrypted, File: "run/credentials/nth.service/a"}},
		"a missing encrypted file":   {unit: "LoadCredentialEncrypted=a:/etc/url", want: settings.Credential{Source: encrypted}, fault: missing},
		"of a store":                 {unit: "LoadCredential=a", want: settings.Credential{Source: "LoadCredential= of nth.service", Sealed: only}},
		"of a store, running":        {unit: "ImportCredential=*", files: map[string]string{"run/credentials/nth.service/a": "text"}, want: settings.Credential{Source: "of nth.service", File: "run/credentials/nth.service/a"}},
		"a text":                     {unit: "SetCredential=a:x", want: settings.Credential{Source: "SetCredential= of nth.service", Sealed: only}},
		"a text in place of a file":  {unit: "SetCredential=a:\\n"},
		"the same, running":          {unit: "ImportCredential=*\nSetCredential=a:\\n", files: map[string]string{"run/credentials/nth.service/a": "\n"}},
		"the same, of a store":       {unit: "LoadCredential=a\nSetCredential=a:\\n", want: settings.Credential{Source: "LoadCredential= of nth.service", Sealed: only}},
		"what a drop-in takes back":  {unit: "LoadCredential=a:/etc/url\nLoadCredential=\nSetCredential=a:b\nSetCredential="},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t, row.unit, row.files)
			if row.want.Source != "" {
				row.want.Name = "a"
			}
			if row.want.File != "" {
				row.want.File = filepath.Join(root, row.want.File)
			}
			unit := settings.ReadUnit(root, "nth.service")
			got := unit.Find("a")
			fault := got.Fault
			if got.Fault = nil; got != row.want || (fault == nil) != (row.fault == "") || fault != nil && !strings.Contains(fault.Error(), row.fault) {
				t.Errorf("found is %+v, with the fault %v; want %+v and %q", got, fault, row.want, row.fault)
			}
			if doubt := unit.Doubt(); doubt != "" {
				t.Errorf("there is a doubt: %q", doubt)
			}
		})
	}
}

// systemd would wait for whoever writes to a pipe, and nobody here does.
func TestNobodyWaitsForAPipe(t *testing.T) {
	root := machine(t, "LoadCredential=a:/etc/pipe", nil)
	if err := syscall.Mkfifo(filepath.Join(root, "etc/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := settings.ReadUnit(root, "nth.service").Find("a"); c.Fault == nil || !strings.Contains(c.Fault.Error(), "/etc/pipe is not a file") {
		t.Errorf("found is %+v", c)
	}
}

func TestAUnitThatCannotBeReadIsDoubtful(t *testing.T) {
	root := machine(t, "LoadCredential=a:/etc/url", nil)
	if err := os.Mkdir(filepath.Join(root, "etc/systemd/system/nth.service.d/60.conf"), 0o700); err != nil {
		t.Fatal(err)
	}
	if doubt := settings.ReadUnit(root, "nth.service").Doubt(); !strings.Contains(doubt, "60.conf") {
		t.Errorf("the doubt is %q", doubt)
	}
}

func TestTheServiceFindsWhatItIsHandedAndAsksNobody(t *testing.T) {
	root := machine(t, "LoadCredential=a:/etc/url\nLoadCredential=b:/etc/none", map[string]string{"etc/url": "x", "own/a": "text"})
	unit := settings.ReadUnit(root, "nth.service")
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Join(root, "own"))
	want := settings.Credential{Name: "a", File: filepath.Join(root, "own/a")}
	for _, given := range []settings.Given{settings.Own, unit.Find, settings.ReadUnit(root, "nth.service").Find} {
		if got := given("a"); got != want {
			t.Errorf("found is %+v, want %+v", got, want)
		}
		if got := given("b"); got != (settings.Credential{}) {
			t.Errorf("of what was not handed over %+v is found", got)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "own")
	if got := settings.Own("a"); got != (settings.Credential{}) {
		t.Errorf("in a directory that is none %+v is found", got)
	}
}
