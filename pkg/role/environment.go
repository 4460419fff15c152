package role

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// endpointVariable is the environment variable with the base URL of all services. With "_EC2" or the name of another service at its end, it is
// the variable for that service alone.
const endpointVariable = "AWS_ENDPOINT_URL"

// environment has the settings of endpoints in the environment variables that
// https://docs.aws.amazon.com/sdkref/latest/guide/environment-variables.html describes. It is one of the ConfigSources in which clients of the SDK
// look up settings.
//
// The SDK has a type for the same, config.EnvConfig. But its package imports the clients of three services for signing in, which nth never uses.
// They would cost megabytes of program, and hundreds of kilobytes of memory at each start.
type environment struct {
	fips      aws.FIPSEndpointState
	dualStack aws.DualStackEndpointState
}

// readEnvironment reads the environment variables that are true or false. The error names a variable that is neither.
func readEnvironment() (environment, error) {
	fips, err := variable("AWS_USE_FIPS_ENDPOINT", aws.FIPSEndpointStateUnset, aws.FIPSEndpointStateDisabled, aws.FIPSEndpointStateEnabled)
	if err != nil {
		return environment{}, err
	}
	dualStack, err := variable(
		"AWS_USE_DUALSTACK_ENDPOINT", aws.DualStackEndpointStateUnset, aws.DualStackEndpointStateDisabled, aws.DualStackEndpointStateEnabled)
	return environment{fips: fips, dualStack: dualStack}, err
}

// variable reads an environment variable that is "true", "false" or empty. It returns yes for "true", no for "false", and unset if the variable is
// empty or not set. Any other setting is an error.
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

// GetUseFIPSEndpoint returns whether to use FIPS endpoints; found is false if the variable is not set. Clients of the SDK call it.
func (e environment) GetUseFIPSEndpoint(context.Context) (state aws.FIPSEndpointState, found bool, err error) {
	return e.fips, e.fips != aws.FIPSEndpointStateUnset, nil
}

// GetUseDualStackEndpoint returns whether to use dual-stack endpoints; found is false if the variable is not set. Clients of the SDK call it.
func (e environment) GetUseDualStackEndpoint(context.Context) (state aws.DualStackEndpointState, found bool, err error) {
	return e.dualStack, e.dualStack != aws.DualStackEndpointStateUnset, nil
}
