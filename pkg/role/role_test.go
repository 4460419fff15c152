package role_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"testing"
	"time"

	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

func said(code string) error {
	return fmt.Errorf("asking: %w", &smithy.GenericAPIError{Code: code, Message: "no"})
}

func TestEveryWordOfAWSForARefusalIsOne(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AWS.SimpleQueueService.AccessDenied", "Client.UnauthorizedOperation",
		"NotAuthorized", "UnauthorizedAccess",
	} {
		if !role.Refused(said(code)) {
			t.Errorf("%s is no refusal", code)
		}
	}
	for _, err := range []error{
		nil, errors.New("AccessDenied"), said("Throttling"), said("DryRunOperation"), said("ValidationError"), said("ExpiredToken"), said("AuthFailure"),
	} {
		if role.Refused(err) {
			t.Errorf("%v is a refusal", err)
		}
	}
}

func TestAFailureIsExplainedInOneLine(t *testing.T) {
	t.Parallel()
	const action = "ec2:DescribeInstances"
	for _, row := range []struct {
		err  error
		want string
	}{
		{said("UnauthorizedOperation"), "the instance's role does not allow ec2:DescribeInstances"},
		{fmt.Errorf("reading: %w", fs.ErrNotExist), "the instance has no IAM role"},
		{said("Throttling"), "calling ec2:DescribeInstances: Throttling: no"},
		{fmt.Errorf("sending: %w", context.DeadlineExceeded), "calling ec2:DescribeInstances: no answer within 10s"},
		{fmt.Errorf("sending: %w", &url.Error{Op: "Post", URL: "https://ec2", Err: errors.New("there is no network")}), "calling ec2:DescribeInstances: there is no network"},
	} {
		if got := role.Explain(action, 10*time.Second, row.err); got == nil || got.Error() != row.want {
			t.Errorf("%v is explained as %v, want %s", row.err, got, row.want)
		}
	}
	if err := role.Explain(action, time.Second, nil); err != nil {
		t.Errorf("nothing is explained as %v", err)
	}
}

func TestPausesGrowAndAreNeverTheSame(t *testing.T) {
	t.Parallel()
	const first, longest = time.Second, time.Minute
	for failures, most := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 32 * time.Second, 7: time.Minute, 8: time.Minute, 1 << 40: time.Minute,
	} {
		different := map[time.Duration]bool{}
		for range 50 {
			pause := role.Pause(failures, first, longest)
			if pause < most/2 || pause > most {
				t.Errorf("after %d failures the pause is %s, want %s to %s", failures, pause, most/2, most)
			}
			different[pause] = true
		}
		if len(different) < 40 {
			t.Errorf("after %d failures, of 50 pauses %d differ", failures, len(different))
		}
	}
	for range 50 {
		if every := role.Spread(time.Minute); every < 54*time.Second || every > 66*time.Second {
			t.Errorf("an interval of a minute is %s", every)
		}
	}
}
