package strangers

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// The programs that the handler's scripts call are links to this test binary. It hands their arguments to the test, which does what they
// would have done, and says what is left to do.

// shims are the names of those programs.
var shims = []string{"awslocal", "docker", "helm", "kind", "kubectl", "sleep"}

// socket is the environment variable with the address of the test.
const socket = "NTH_SHIM_SOCKET"

// slower is how many times longer a pause of the scripts takes with the handler.
const slower = 7.5

// answer is what a program of that name prints and exits with, or the command that it becomes, or the address that it forwards its port to.
type answer struct {
	Out     string
	Status  int
	Exec    []string
	Forward string
}

// call is a call of a program.
type call struct {
	Args  []string // with the program's name
	reply chan answer
}

// shim is the whole program.
func shim() {
	os.Args[0] = filepath.Base(os.Args[0])
	if os.Args[0] == "sleep" {
		seconds, _ := strconv.ParseFloat(os.Args[1], 64)
		time.Sleep(time.Duration(seconds / slower * float64(time.Second)))
		return
	}
	var a answer
	connection, err := net.Dial("unix", os.Getenv(socket))
	if err == nil {
		err = json.NewEncoder(connection).Encode(call{Args: os.Args})
	}
	if err == nil {
		err = json.NewDecoder(connection).Decode(&a)
	}
	if err == nil && a.Exec != nil {
		err = syscall.Exec(a.Exec[0], a.Exec, os.Environ())
	}
	if err == nil && a.Forward != "" {
		err = forward("127.0.0.1:7000", a.Forward)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
		os.Exit(125)
	}
	fmt.Print(a.Out)
	os.Exit(a.Status)
}

// forward is "kubectl port-forward", until it is killed.
func forward(from, to string) error {
	listener, err := net.Listen("tcp", from)
	if err != nil {
		return err
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		server, err := net.Dial("tcp", to)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(server, client); server.Close() }()
		go func() { _, _ = io.Copy(client, server); client.Close() }()
	}
}

// listen makes the folder of the programs, and sends their calls to a channel.
func listen(t *testing.T) (folder, address string, calls <-chan call) {
	t.Helper()
	folder, err := os.MkdirTemp("", "nth-shim-") // shorter than t.TempDir, for the address of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range shims {
		if err := os.Symlink(self, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	address = filepath.Join(folder, "socket")
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	received := make(chan call)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				c := call{reply: make(chan answer, 1)}
				if json.NewDecoder(connection).Decode(&c) != nil {
					return
				}
				select {
				case received <- c:
					_ = json.NewEncoder(connection).Encode(<-c.reply) // fails only if the script was killed
				case <-t.Context().Done():
				}
			}()
		}
	}()
	return folder, address, received
}
