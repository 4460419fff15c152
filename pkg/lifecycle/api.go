package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies.
const (
	describeInstances = "autoscaling:DescribeAutoScalingInstances"
	describeHooks     = "autoscaling:DescribeLifecycleHooks"
	heartbeat         = "autoscaling:RecordLifecycleActionHeartbeat"
	complete          = "autoscaling:CompleteLifecycleAction"
)

// Permissions lists the IAM actions that a Keeper needs.
func Permissions() []string {
	return []string{describeInstances, describeHooks, heartbeat, complete}
}

// answerLimit is how long Auto Scaling may take to answer one request, with the look for credentials.
const answerLimit = 10 * time.Second

// terminating is the transition that nth is about, by its name in the API.
const terminating = "autoscaling:EC2_INSTANCE_TERMINATING"

var (
	// errNoRole: the instance has no role to ask with.
	errNoRole = errors.New("the instance has no IAM role")
	// errNothingWaits: there is no lifecycle action to hold or complete.
	errNothingWaits = errors.New("no lifecycle action waits")
)

// refusedError is a request that IAM does not allow.
type refusedError struct{ action string }

func (e refusedError) Error() string { return "the instance's role does not allow " + e.action }

// service is Auto Scaling, asked about one instance.
type service struct {
	sdk      *autoscaling.Client
	instance string
}

// newService asks the metadata service who and where the instance is. It sends nothing to Auto Scaling.
func newService(ctx context.Context, opts Options, dial dialer) (*service, error) {
	instance, err := line(ctx, opts, "instance-id")
	if err != nil {
		return nil, err
	}
	region := opts.Region
	if region == "" {
		if region, err = line(ctx, opts, "placement/region"); err != nil {
			return nil, err
		}
	}
	options := autoscaling.Options{
		Region:      region,
		Credentials: role.Credentials(opts.Metadata),
		HTTPClient:  newHTTPClient(dial),
		// Each request is repeated where it is made, where it is known what it is worth.
		Retryer: aws.NopRetryer{},
	}
	if opts.Endpoint != "" {
		options.BaseEndpoint = aws.String(strings.TrimSuffix(opts.Endpoint, "/"))
	}
	return &service{sdk: autoscaling.New(options), instance: instance}, nil
}

// line reads a document of one line.
func line(ctx context.Context, opts Options, path string) (string, error) {
	body, err := opts.Metadata(ctx, path)
	if err != nil {
		return "", fmt.Errorf("asking the metadata service who this is: %w", err)
	}
	return strings.TrimSpace(string(body)), nil
}

// newHTTPClient returns a client for requests that are minutes apart: no connection is kept for long.
func newHTTPClient(dial dialer) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: answerLimit / 2}).DialContext
	}
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dial,
		TLSHandshakeTimeout: answerLimit / 2,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1,
		IdleConnTimeout:     answerLimit,
	}}
}

// place asks for the group that the instance is in, and for its state there. The group is empty if it is in none.
func (s *service) place(ctx context.Context) (group, state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeAutoScalingInstances(ctx, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{s.instance}})
	if err != nil {
		return "", "", explain(describeInstances, err)
	}
	for _, i := range out.AutoScalingInstances {
		if aws.ToString(i.InstanceId) == s.instance {
			return aws.ToString(i.AutoScalingGroupName), aws.ToString(i.LifecycleState), nil
		}
	}
	return "", "", nil
}

// hooks asks for the group's hooks for terminations.
func (s *service) hooks(ctx context.Context, group string) ([]hook, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	if err != nil {
		return nil, explain(describeHooks, err)
	}
	var hooks []hook
	for _, h := range out.LifecycleHooks {
		if aws.ToString(h.LifecycleTransition) != terminating {
			continue
		}
		hooks = append(hooks, newHook(aws.ToString(h.LifecycleHookName), aws.ToString(h.NotificationTargetARN),
			aws.ToInt32(h.HeartbeatTimeout), aws.ToInt32(h.GlobalTimeout)))
	}
	return hooks, nil
}

// The limits of a hook where the API does not tell them: an hour without a heartbeat, and a hundred such times but no
// more than two days in all.
const (
	defaultTimeout = time.Hour
	longestGlobal  = 48 * time.Hour
)

func newHook(name, notifies string, timeout, global int32) hook {
	h := hook{name: name, notifies: notifies, timeout: time.Duration(timeout) * time.Second, global: time.Duration(global) * time.Second}
	if h.timeout <= 0 {
		h.timeout = defaultTimeout
	}
	if h.global <= 0 {
		h.global = min(100*h.timeout, longestGlobal)
	}
	return h
}

// heartbeat makes Auto Scaling wait for another timeout.
func (s *service) heartbeat(ctx context.Context, group, name string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := s.sdk.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance,
	})
	return explain(heartbeat, err)
}

// complete ends the waiting for a hook. The result of a termination that was prepared for is always CONTINUE: the other
// one, ABANDON, would end the waiting for all other hooks as well.
func (s *service) complete(ctx context.Context, group, name string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := s.sdk.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &group, LifecycleHookName: &name, InstanceId: &s.instance, LifecycleActionResult: aws.String("CONTINUE"),
	})
	return explain(complete, err)
}

// nothing is how Auto Scaling says that nothing waits: the action has ended, or the hook or the group is not there any more.
var nothing = regexp.MustCompile(`No active Lifecycle Action|No Lifecycle Hook found|name not found`)

// explain says in plain words why a request failed; the SDK's own text is a paragraph.
func explain(action string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errNoRole
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		switch code := api.ErrorCode(); {
		case code == "AccessDenied" || code == "AccessDeniedException" || code == "UnauthorizedOperation":
			return refusedError{action}
		case code == "ValidationError" && nothing.MatchString(api.ErrorMessage()):
			return errNothingWaits
		default:
			return fmt.Errorf("calling %s: %s: %s", action, code, api.ErrorMessage())
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("calling %s: no answer within %s", action, answerLimit)
	default:
		if sending, ok := errors.AsType[*url.Error](err); ok {
			err = sending.Err
		}
		return fmt.Errorf("calling %s: %w", action, err)
	}
}
