// Command below is an exec plugin that runs below a root directory with nothing else in it: it is linked statically.
package main

import (
	"fmt"
	"os"
)

// main prints a token only if it sees the host's root as its own, which has no /proc, and has the kubeconfig's three arguments and none of nth's
// own certificates in its environment.
func main() {
	if _, err := os.Stat("/proc/self"); err == nil || len(os.Args) != 4 || os.Getenv("SSL_CERT_FILE") != "" {
		os.Exit(1)
	}
	fmt.Print(`{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "system:node:below"}}`)
}
