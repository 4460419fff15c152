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

func TestACommandBesideTheServiceFindsWhatTheUnitHandsIt(t *testing.T) {
	const encrypted = "it is encrypted, and only the service gets it in the clear"
	const missing = "is not there: systemd does not start nth.service without it (status 243)"
	for name, row := range map[string]struct {
		unit  string
		files map[string]string
		want  settings.Credential // its File below the root
		fault string
	}{
		"none": {unit: "LoadCredential=other:/etc/url", want: settings.Credential{}},
		"a file": {
			unit: "LoadCredential=a:/etc/url", files: map[string]string{"etc/url": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/url", File: "etc/url"},
		},
		"a file that is named later": {
			unit: "LoadCredential=a:/etc/old\nLoadCredential=a:/etc/url", files: map[string]string{"etc/url": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/url", File: "etc/url"},
		},
		"a file that is not there": {
			unit: "LoadCredential=a:/etc/url", want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/url"}, fault: "/etc/url " + missing,
		},
		"a file that is not there, with a text in its place": {
			unit: "LoadCredential=a:/etc/url\nSetCredential=a:none: at all",
			want: settings.Credential{Name: "a", Source: "SetCredential= of nth.service", Text: "none: at all"},
		},
		"an empty file": {
			unit: "LoadCredential=a:/etc/url", files: map[string]string{"etc/url": ""},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/url"}, fault: "/etc/url is empty",
		},
		"a directory": {
			unit: "LoadCredential=a:/etc/nth", files: map[string]string{"etc/nth/a": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/nth"}, fault: "/etc/nth is not a file",
		},
		"a way that ends too soon": {
			unit: "LoadCredential=a:/etc/nth/b", files: map[string]string{"etc/nth": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/nth/b"}, fault: "not a directory",
		},
		"an encrypted file": {
			unit: "LoadCredentialEncrypted=a:/etc/url", files: map[string]string{"etc/url": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredentialEncrypted= of nth.service, /etc/url", Sealed: encrypted},
		},
		"an encrypted file of a service that runs": {
			unit: "LoadCredentialEncrypted=a:/etc/url", files: map[string]string{"etc/url": "x", "run/credentials/nth.service/a": "y"},
			want: settings.Credential{Name: "a", Source: "LoadCredentialEncrypted= of nth.service, /etc/url", File: "run/credentials/nth.service/a"},
		},
		"an encrypted file that is not there": {
			unit: "LoadCredentialEncrypted=a:/etc/url",
			want: settings.Credential{Name: "a", Source: "LoadCredentialEncrypted= of nth.service, /etc/url"}, fault: missing,
		},
		"an encrypted file that is empty": {
			unit: "LoadCredentialEncrypted=a:/etc/url", files: map[string]string{"etc/url": ""},
			want: settings.Credential{Name: "a", Source: "LoadCredentialEncrypted= of nth.service, /etc/url"}, fault: "is empty",
		},
		"one of the store": {
			unit: "LoadCredential=a", files: map[string]string{"etc/credstore/a": "x", "usr/lib/credstore/a": "y"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /etc/credstore/a", File: "etc/credstore/a"},
		},
		"one of the store, by another name": {
			unit: "LoadCredential=a:b", files: map[string]string{"run/credstore/b": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredential= of nth.service, /run/credstore/b", File: "run/credstore/b"},
		},
		"one that is in no store": {
			unit: "LoadCredential=a",
			want: settings.Credential{
				Name: "a", Source: "LoadCredential= of nth.service",
				Sealed: "it is in none of the places where systemd looks for one without a path, such as /etc/credstore",
			},
		},
		"an encrypted one of the store": {
			unit: "LoadCredentialEncrypted=a", files: map[string]string{"etc/credstore.encrypted/a": "x"},
			want: settings.Credential{Name: "a", Source: "LoadCredentialEncrypted= of nth.service, /etc/credstore.encrypted/a", Sealed: encrypted},
		},
		"one that is imported": {
			unit: "ImportCredential=[a-c]", files: map[string]string{"etc/credstore/a": "x"},
			want: settings.Credential{Name: "a", Source: "ImportCredential= of nth.service, /etc/credstore/a", File: "etc/credstore/a"},
		},
		"one that may be imported, and is not there": {unit: "ImportCredential=*", want: settings.Credential{}},
		"a text": {
			unit: "SetCredential=a:https://hooks.test/x", want: settings.Credential{Name: "a", Source: "SetCredential= of nth.service", Text: "https://hooks.test/x"},
		},
		"a text with backslashes": {
			unit: `SetCredential=a:x\n`, want: settings.Credential{Name: "a", Source: "SetCredential= of nth.service", Sealed: "it is written with backslashes"},
		},
		"an encrypted text": {
			unit: "SetCredentialEncrypted=a:AAAA", want: settings.Credential{Name: "a", Source: "SetCredentialEncrypted= of nth.service", Sealed: encrypted},
		},
		"what a drop-in takes back": {unit: "LoadCredential=a:/etc/url\nLoadCredential=\nSetCredential=a:b\nSetCredential=", want: settings.Credential{}},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t, row.unit, row.files)
			if row.want.File != "" {
				row.want.File = filepath.Join(root, row.want.File)
			}
			for _, offline := range []bool{true, false} { // There is no systemd below the root.
				unit := settings.ReadUnit(t.Context(), root, "nth.service", offline)
				got := unit.Find("a")
				fault := got.Fault
				if got.Fault = nil; got != row.want || (fault == nil) != (row.fault == "") || fault != nil && !strings.Contains(fault.Error(), row.fault) {
					t.Errorf("offline %t: found is %+v, with the fault %v; want %+v and %q", offline, got, fault, row.want, row.fault)
				}
				if doubts := unit.Doubts(); len(doubts) > 0 {
					t.Errorf("there are doubts: %q", doubts)
				}
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
	if c := settings.ReadUnit(t.Context(), root, "nth.service", true).Find("a"); c.Fault == nil || !strings.Contains(c.Fault.Error(), "/etc/pipe is not a file") {
		t.Errorf("found is %+v", c)
	}
}

func TestAUnitThatCannotBeReadIsDoubtful(t *testing.T) {
	root := machine(t, "LoadCredential=a:/etc/url", nil)
	if err := os.Mkdir(filepath.Join(root, "etc/systemd/system/nth.service.d/60.conf"), 0o700); err != nil {
		t.Fatal(err)
	}
	if doubts := settings.ReadUnit(t.Context(), root, "nth.service", true).Doubts(); len(doubts) != 1 || !strings.Contains(doubts[0], "60.conf") {
		t.Errorf("the doubts are %q", doubts)
	}
}

func TestTheServiceFindsWhatItIsHandedAndAsksNobody(t *testing.T) {
	root := machine(t, "LoadCredential=a:/etc/url\nLoadCredential=b:/etc/none", map[string]string{"etc/url": "x", "own/a": "y"})
	unit := settings.ReadUnit(t.Context(), root, "nth.service", true)
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Join(root, "own"))
	want := settings.Credential{Name: "a", File: filepath.Join(root, "own/a")}
	for _, given := range []settings.Given{settings.Own, unit.Find, settings.ReadUnit(t.Context(), root, "nth.service", false).Find} {
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
