package imdstest

import "github.com/nth-project/nth/pkg/imds/standin"

// The machine that every Simulator starts as. Set changes any of it.
const (
	InstanceID       = standin.InstanceID
	InstanceType     = standin.InstanceType
	AvailabilityZone = standin.AvailabilityZone
	Region           = standin.Region
	LocalIPv4        = standin.LocalIPv4
	LocalHostname    = standin.LocalHostname
	// Role is the instance's IAM role. Its credentials are made up and open nothing.
	Role = standin.Role
)

// SetLifeCycle says how the instance was bought: "spot", "on-demand", "scheduled" or "capacity-block". It starts as
// "spot".
func (s *Simulator) SetLifeCycle(lifeCycle string) {
	s.service.Set("meta-data/instance-life-cycle", lifeCycle)
	s.tellChange("instance life cycle: %s", lifeCycle)
}

// Set serves body, as it is, at a path such as "/latest/meta-data/instance-id" or "meta-data/instance-id". It replaces
// whatever is served there, also an announcement, until the next change of that announcement.
func (s *Simulator) Set(path, body string) {
	s.service.Set(path, body)
	s.tellChange("document %s set, %d bytes", standin.DocumentPath(path), len(body))
}

// Unset removes the document at path: from now on it is answered with 404.
func (s *Simulator) Unset(path string) {
	if s.service.Unset(path) {
		s.tellChange("document %s removed", standin.DocumentPath(path))
	}
}

// ExpireTokens makes every token that was handed out invalid: requests with it get 401 until they bring a new one.
func (s *Simulator) ExpireTokens() {
	s.service.ExpireTokens()
	s.tellChange("all tokens expired")
}
