package systemd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

// host makes a file system with these files.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheEnvironmentOfAServiceIsReadFromItsFiles(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/kubelet.service":                      "[Unit]\nEnvironment=NO=1\n[Service]\nEnvironment=A=unit B=unit\nEnvironmentFile=-/etc/eks/kubelet/environment\n",
		"usr/lib/systemd/system/kubelet.service.d/10-a.conf":          "[Service]\nEnvironment=A=overridden\n",
		"etc/systemd/system/kubelet.service.d/10-a.conf":              "[Service]\nEnvironment=A=10\n",
		"etc/systemd/system/kubelet.service.d/environment.conf":       "[Service]\nEnvironment=\"HTTPS_PROXY=http://proxy.test:3128\" 'NO_PROXY=a, b'\\\n  C=\\\"d\n",
		"etc/systemd/system/kubelet.service.d/not-one.txt":            "[Service]\nEnvironment=A=not-one\n",
		"etc/systemd/system/snap.kubelet-eks.daemon.service.d/a.conf": "[Service]\nEnvironment=A=drop-in-of-nothing\n",
	})
	service, variables, files, err := systemd.ReadEnvironment(root, "snap.kubelet-eks.daemon.service", "kubelet.service")
	want := []string{"A=unit", "B=unit", "A=10", "HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=a, b", `C="d`}
	if err != nil || service != "kubelet.service" || !slices.Equal(variables, want) || !slices.Equal(files, []string{"/etc/eks/kubelet/environment"}) {
		t.Errorf("of %s it reads %q and %q, %v", service, variables, files, err)
	}
	if service, variables, files, err := systemd.ReadEnvironment(root, "none.service"); service != "" || len(variables)+len(files) != 0 || err != nil {
		t.Errorf("of a service that is not there: %q, %q and %q, %v", service, variables, files, err)
	}
}

func TestADropInTakesBackWhatCameBeforeIt(t *testing.T) {
	root := host(t, map[string]string{
		"etc/systemd/system/kubelet.service":          "[Service]\nEnvironment=A=1\nEnvironmentFile=/a\n",
		"etc/systemd/system/kubelet.service.d/a.conf": "[Service]\nEnvironment=\nEnvironment=B=2\nEnvironmentFile=\n",
	})
	_, variables, files, err := systemd.ReadEnvironment(root, "kubelet.service")
	if err != nil || !slices.Equal(variables, []string{"B=2"}) || len(files) != 0 {
		t.Errorf("it reads %q and %q, %v", variables, files, err)
	}
}

func TestTheSyntaxOfAUnitIsSystemds(t *testing.T) {
	for text, want := range map[string][]string{
		`Environment=A=100%% B=%%41 C=%H D=50% E=%40`:                                {"A=100%", "B=%41", "C=%H", "D=50%"},
		`Environment="A=a b" 'B=c "d"' C="e f"g D='h'"i j"`:                          {"A=a b", `B=c "d"`, "C=e fg", "D=hi j"},
		`Environment="A=a \"b\"" 'B=it\'s' C=\x41\102\u00e9\s\tx D=\\`:               {`A=a "b"`, "B=it's", "C=ABé \tx", `D=\`},
		`Environment=A=1 B=\q C=3`:                                                   {"A=1"},
		`Environment=A=1 "B=2 C=3`:                                                   {"A=1"},
		`Environment=A=1 B=\`:                                                        {"A=1", "B="},
		"Environment=A=1 \\\n# a comment \\\n  ; another\n  B=2\nEnvironment=C=3":    {"A=1", "B=2", "C=3"},
		"  Environment = A=1\r\n\tEnvironment=\t\"B=2\"\t\r\n":                       {"A=1", "B=2"},
		"#Environment=A=1\nEnvironment=B=2 # no comment=":                            {"B=2", "#", "no", "comment="},
		"Environment=A=1\n[Install]\nEnvironment=B=2\n[Service]\nC\nEnvironment=D=4": {"A=1", "D=4"},
		"Environment=A=1\nEnvironment=A=2\nEnvironment=A=":                           {"A=1", "A=2", "A="},
		"Environment=A=1\nEnvironment=\nEnvironment=B=2":                             {"B=2"},
		"Environment=A=" + strings.Repeat("a,", 5000):                                {"A=" + strings.Repeat("a,", 5000)},
	} {
		root := host(t, map[string]string{"etc/systemd/system/kubelet.service": "[Service]\n" + text})
		if _, got, _, err := systemd.ReadEnvironment(root, "kubelet.service"); err != nil || !slices.Equal(got, want) {
			t.Errorf("of %.200s\nit reads %q, %v,\nwant %q", text, got, err, want)
		}
	}
	root := host(t, map[string]string{"etc/systemd/system/kubelet.service": "[Service]\nEnvironmentFile=-/etc/100%%\nEnvironmentFile=/etc/b c\nEnvironmentFile=/etc/%1\n"})
	if _, _, files, err := systemd.ReadEnvironment(root, "kubelet.service"); err != nil || !slices.Equal(files, []string{"/etc/100%", "/etc/b c"}) {
		t.Errorf("the files are %q, %v", files, err)
	}
}

func TestTheSyntaxOfAnEnvironmentFileIsSystemds(t *testing.T) {
	for text, want := range map[string][]string{
		`A=100%% of it`:        {"A=100%% of it"},
		`A=a  b"c" 'd' `:       {`A=a  b"c" 'd'`},
		`A= "a \"b\" \$c \q" `: {`A=a "b" $c \q`},
		`A='a \" b' "c"`:       {`A=a \" bc`},
		`A="a" b "c"`:          {`A=ab "c"`},
		`A=a\ b\\c\"\  `:       {`A=a b\c" `},
		"A='one\ntwo' \nB=\"three\\\nfour\nfive\"\nC=6": {"A=one\ntwo", "B=threefour\nfive", "C=6"},
		"A=one\\\ntwo\n": {"A=onetwo"},
		"#A=1\n ;B=2\nC=3 # no comment\n#D \\\nE=5": {"C=3 # no comment", "E=5"},
		"nothing\nA = 1 \r\n\tB\t=2":                {"A=1", "B=2"},
		"A=it's\nB=2":                               {"A=it's", "B=2"},
		"A='never ends\nB=2":                        {"A=never ends\nB=2"},
		"A=\nB=2\nA=3\nnothing":                     {"A=", "B=2", "A=3"},
		`A=\`:                                       {"A="},
		`A="\`:                                      {"A="},
	} {
		root := host(t, map[string]string{"etc/a.env": text})
		if got, err := systemd.ReadEnvironmentFiles(root, []string{"/etc/a.env"}); err != nil || !slices.Equal(got, want) {
			t.Errorf("of %s\nit reads %q, %v,\nwant %q", text, got, err, want)
		}
	}
}

// Whoever opens it waits for one who writes into it.
func TestAPipeIsNoEnvironmentFile(t *testing.T) {
	root := host(t, map[string]string{"etc/a.env": "A=1"})
	if err := syscall.Mkfifo(filepath.Join(root, "etc/b.env"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := systemd.ReadEnvironmentFiles(root, []string{"/etc/*.env"}); err == nil || !strings.Contains(err.Error(), "/etc/b.env: it is no file") {
		t.Errorf("it reads %q, %v", got, err)
	}
}

func TestAnEnvironmentFileIsReadAsSystemdDoes(t *testing.T) {
	root := host(t, map[string]string{
		"etc/a.env": "# a comment\n; another\n\nA=1\n B = two words \nC=\"in quotes\"\nD='in \"others\"'\nnothing\nE=on \\\ntwo lines\nF=\n",
		"etc/b.env": "A=2\n",
	})
	got, err := systemd.ReadEnvironmentFiles(root, []string{"/etc/none", "/etc/*.env"})
	want := []string{"A=1", "B=two words", "C=in quotes", `D=in "others"`, "E=on two lines", "F=", "A=2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("it reads %q, %v, want %q", got, err, want)
	}
	if _, err := systemd.ReadEnvironmentFiles(root, []string{"/etc"}); err == nil {
		t.Error("a directory was read")
	}
}
