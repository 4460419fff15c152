package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nth-project/nth/pkg/role"
)

// Request is a request that changes an instance, by its action's name in IAM policies.
type Request string

// The requests that nth-queue can make. EC2 moves an instance to other hardware when it is stopped and started.
const (
	Reboot    Request = "ec2:RebootInstances"
	Stop      Request = "ec2:StopInstances"
	Start     Request = "ec2:StartInstances"
	Terminate Request = "ec2:TerminateInstances"
)

// ErrUnanswered means that EC2 has not said what became of a request that changes an instance: no answer came, or a fault of EC2's.
var ErrUnanswered = errors.New("EC2 has not confirmed it")

// Change makes a request about an instance. If try is set, EC2 changes nothing, and an error says why it would refuse.
//
// The request is repeated only if EC2 has throttled it. The error wraps ErrUnanswered if EC2 may have carried out the request nevertheless.
func (c *Catalog) Change(ctx context.Context, request Request, id string, try bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	err := c.request(ctx, request, id, try)
	if err == nil || try && role.Code(err) == "DryRunOperation" {
		return nil
	}
	failed := explain(fmt.Sprintf("%s for the instance %s", request, id), err)
	answer, answered := errors.AsType[*smithyhttp.ResponseError](err)
	isFault := answered && answer.HTTPStatusCode() >= http.StatusInternalServerError && !role.Throttled(err)
	if role.Code(err) == "" || isFault {
		return fmt.Errorf("%w (%w)", ErrUnanswered, failed)
	}
	return failed
}

// request makes a request about an instance, and returns the SDK's error. A try always has one: see role.Right.
func (c *Catalog) request(ctx context.Context, request Request, id string, try bool) (err error) {
	once := func(o *ec2.Options) {
		o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
			s.Retryables = []retry.IsErrorRetryable{retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes}}
		})
	}
	ids := []string{id}
	switch request {
	case Reboot:
		_, err = c.ec2.RebootInstances(ctx, &ec2.RebootInstancesInput{InstanceIds: ids, DryRun: &try}, once)
	case Stop:
		_, err = c.ec2.StopInstances(ctx, &ec2.StopInstancesInput{InstanceIds: ids, DryRun: &try}, once)
	case Start:
		_, err = c.ec2.StartInstances(ctx, &ec2.StartInstancesInput{InstanceIds: ids, DryRun: &try}, once)
	case Terminate:
		_, err = c.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids, DryRun: &try}, once)
	default: // as EC2 answers to a request that it does not know
		err = &smithy.GenericAPIError{Code: "InvalidAction", Message: "no such request is known"}
	}
	return err
}

// ChangeRights lists the permissions for requests, for "nth-queue check". They are tried with one instance, as a policy may name tags.
func (c *Catalog) ChangeRights(id string, requests ...Request) (rights []role.Right) {
	for _, request := range requests {
		rights = append(rights, role.Right{
			Name: string(request), Without: "maintenance that needs it is left to EC2",
			Try: func(ctx context.Context) error { return c.request(ctx, request, id, true) },
		})
	}
	return rights
}
