package role

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// endpointVariable holds a base URL for all services, and with "_EC2" or another name of a service that of this one.
const endpointVariable = "AWS_ENDPOINT_URL"

// environment is what the environment says of endpoints, as
// https://docs.aws.amazon.com/sdkref/latest/guide/environment-variables.html describes it. Clients of the SDK look
// it up among their ConfigSources. The SDK has one of its own, config.EnvConfig, whose package also imports the clients
// of three services for signing in, which nth never uses: megabytes of program, and hundreds of kilobytes at each start.
type environment struct {
	fips      aws.FIPSEndpointState
	dualStack aws.DualStackEndpointState
}

// readEnvironment reads the variables that are true or false. The error names one that is neither.
func readEnvironment() (environment, error) {
	fips, err := variable("AWS_USE_FIPS_ENDPOINT", aws.FIPSEndpointStateUnset, aws.FIPSEndpointStateDisabled, aws.FIPSEndpointStateEnabled)
	if err != nil {
		return environment{}, err
	}
	dualStack, err := variable(
		"AWS_USE_DUALSTACK_ENDPOINT", aws.DualStackEndpointStateUnset, aws.DualStackEndpointStateDisabled, aws.DualStackEndpointStateEnabled)
	return environment{fips: fips, dualStack: dualStack}, err
}

// variable returns the value that stands for the setting of an environment variable: no for "false", yes for "true", unset if it is empty or
// not set. Any other setting is an error.
func variable[T any](name string, unset, no, yes T) (T, error) {
	switch value := os.Getenv(name); strings.ToLower(value) {
	case "":
		return unset, nil
	case "false":
		return no, nil
	case "true":
		return yes, nil
	default:
		return unset, fmt.Errorf("%s is %q, and must be true or false", name, value)
	}
}

// GetServiceBaseEndpoint returns the endpoint that is configured for one service; found is false if there is none. Clients of the SDK call it.
// sdkID is the service's name, such as "Auto Scaling".
func (environment) GetServiceBaseEndpoint(_ context.Context, sdkID string) (endpoint string, found bool, err error) {
	endpoint = os.Getenv(endpointVariable + "_" + strings.ToUpper(strings.ReplaceAll(sdkID, " ", "_")))
	return endpoint, endpoint != "", nil
}

// GetUseFIPSEndpoint returns whether FIPS endpoints are configured; found is false if the variable is not set. Clients of the SDK call it.
func (e environment) GetUseFIPSEndpoint(context.Context) (state aws.FIPSEndpointState, found bool, err error) {
	return e.fips, e.fips != aws.FIPSEndpointStateUnset, nil
}

// GetUseDualStackEndpoint returns whether dual-stack endpoints are configured; found is false if the variable is not set. Clients of the SDK
// call it.
func (e environment) GetUseDualStackEndpoint(context.Context) (state aws.DualStackEndpointState, found bool, err error) {
	return e.dualStack, e.dualStack != aws.DualStackEndpointStateUnset, nil
}
