package drain

// The packages of kubectl's tests, so that "go mod tidy" keeps what they need.
import (
	_ "k8s.io/client-go/rest/fake"
	_ "k8s.io/kubectl/pkg/cmd/testing"
	_ "k8s.io/kubectl/pkg/drain"
)
