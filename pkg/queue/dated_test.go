package queue_test

import (
	"testing"
	"time"
)

func TestWhatDoesNotTellWhenItIsOfIsAsOldAsItsMessage(t *testing.T) {
	t.Parallel()
	const undated = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"1",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	const dated = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"2","time":"2026-03-01T12:00:00Z",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	// A time that no clock shows is none.
	const beyond = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"3","time":"9999-12-31T23:59:59-01:00",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	for body, want := range map[string]time.Time{undated: {}, dated: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), beyond: {}} {
		r := consume(t, newServer(t), nil)
		r.Send(body)
		l := r.lease(t)
		if want.IsZero() {
			want = l.Sent
		}
		if noticed := l.Notices[0].Event.Noticed; noticed.IsZero() || !noticed.Equal(want) {
			t.Errorf("it was noticed at %s, want %s", noticed, want)
		}
		l.Done()
	}
}
