package sqstest

import (
	"fmt"
	"maps"
)

// attributes are those of a queue that was made by packaging/aws.
var attributes = map[string]string{
	"MessageRetentionPeriod": "1209600", "ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "20", "DelaySeconds": "0",
	"SqsManagedSseEnabled": "true", "Policy": `{"Version":"2012-10-17","Statement":[]}`,
	"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead-letters","maxReceiveCount":100}`,
}

// Say sets an attribute of the queue. It is only said: the queue works as before. SQS leaves out what has no value.
func (s *Server) Say(attribute, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attributes[attribute] = value
}

func (s *Server) describe() map[string]string {
	visible, inFlight := s.count()
	s.mu.Lock()
	defer s.mu.Unlock()
	said := map[string]string{
		"ApproximateNumberOfMessages": fmt.Sprint(visible), "ApproximateNumberOfMessagesNotVisible": fmt.Sprint(inFlight),
	}
	maps.Copy(said, s.attributes)
	maps.DeleteFunc(said, func(_, value string) bool { return value == "" })
	return said
}
