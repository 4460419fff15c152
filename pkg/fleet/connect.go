package fleet

import (
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// dialPatience is how long one address of the API server may take to answer before the next one is tried.
const dialPatience = 5 * time.Second

// Connect makes a client from a kubeconfig or, if that is "", from the service account of the pod that this process runs
// in. It sends no request. server is the API server's address.
func Connect(kubeconfig, userAgent string) (client kubernetes.Interface, server string, err error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, "", err
	}
	config.QPS = -1 // A drain sends one request for each pod, all at once; the API server has fairness of its own.
	config.UserAgent = userAgent
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // They are for people who write manifests.
	config.Dial = (&net.Dialer{Timeout: dialPatience, KeepAlive: 30 * time.Second}).DialContext
	if config.ExecProvider != nil {
		config.ExecProvider.StdinUnavailable = true // A daemon has nobody to ask.
	}
	client, err = kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("making a client for %s: %w", config.Host, err)
	}
	return client, config.Host, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("looking for the service account of a pod, as kubernetes.kubeconfig is not set: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
