package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// visibility is how long SQS keeps a message from other consumers at a time. It is extended while the nodes of the message are drained.
const visibility = 20 * time.Second

// serve makes the parts of the service, connects them, and runs them until ctx ends.
func serve(ctx context.Context, d *daemon.Daemon[config.Queue]) error {
	cfg, log := d.Config, d.Log
	reporter := &statusReporter{
		file: record.NewStatusFile(cfg.RuntimeDirectory, func(err error) { log.Warn(err) }), log: log, manager: d.Service.Notifier,
		began: time.Now().Round(0), cfg: cfg, degraded: d.Degraded,
	}
	meter := newMeter(cfg, log, reporter)
	reach, err := reachCluster(cfg, meter.Requested)
	if err != nil { // The kubeconfig is missing or wrong: nothing was asked yet, so another try would end like this one.
		return cli.ConfigError{Fault: err}
	}
	account, err := awsConfig(ctx, cfg)
	if err != nil {
		return err
	}
	clock := &role.Clock{} // learns EC2's time from the answers of AWS
	account.HTTPClient = clock.Watch(account.HTTPClient)
	identity, err := leaseIdentity()
	if err != nil {
		return err
	}
	rules := rulesOf(cfg)
	notices := newNotices(cfg, daemon.NewWebhook(d.Webhook, cfg.DryRun, log, meter), notify.Identity{Client: reach.notices.Interface}, meter, rules.Drain.Gate, log)
	drains := fleet.New(fleet.Options{
		Client: reach.drains.Interface, Leases: reach.lease.Interface, Lease: leaseOf(cfg.Queue.URL, account.Region), Identity: identity, Own: ownPod(),
		Rules: rules, GroupLabel: cfg.Fleet.GroupLabel, Log: log, DryRun: cfg.DryRun,
		EC2: ec2.New(ec2.Options{AWS: account, Tag: cfg.Fleet.ManagedTag}), Clock: clock.Now, ManagedOnly: cfg.Fleet.ManagedTag != "", Cluster: clusterOf(cfg.Fleet),
		Hooks: newHooks(cfg, account, meter, log), CompleteLaunches: cfg.Fleet.CompleteLaunches,
		Taints:    fleet.Taints{Kinds: cfg.Fleet.Taints != "none", Effect: fleet.TaintEffect(cfg.Fleet.Taints), OutOfService: cfg.Fleet.OutOfService},
		Listeners: notices.of,
	})
	messages := sqs.New(sqs.Options{
		URL: cfg.Queue.URL, AWS: account, Visibility: visibility, DryRun: cfg.DryRun,
		Report: func(r sqs.Report) { count(meter, r); logMessage(log, cfg.DryRun, r) }, Trouble: reporter.receiving,
	})
	// The parts need each other. None of them runs before RunWith below, so the rest is set here.
	notices.watched, notices.mayWrite = drains.Watched, drains.MayWrite
	reporter.fleet, reporter.queue, reporter.meter, reporter.process = drains, messages, meter, identity
	reporter.identity = state.IdentityStatus{Credential: reach.drains.Credential, Source: reach.drains.Source, Server: reach.drains.Server}
	log.WithField(systemd.FieldMessageID, systemd.Started).Infof("started as %s, for the queue %s and the cluster at %s%s",
		identity, cfg.Queue.URL, reach.drains.Server, dryRun(cfg))
	d.Service.Ready()
	daemon.RunWith(ctx, func(ctx context.Context) {
		err = drains.Run(ctx, func(ctx context.Context) {
			messages.Run(ctx, func(m *sqs.Message) { drains.Take(m.Notice, m) })
		})
		d.Service.Stopping()
	}, append(notices.work(), reporter.run)...)
	log.WithField(systemd.FieldMessageID, systemd.Stopping).Info("stopped; SQS delivers the unfinished messages to the next leader")
	return err
}

// dryRun returns what the first log line says of a dry run; "" if it is none.
func dryRun(cfg config.Queue) string {
	if cfg.DryRun {
		return ", as a dry run: nothing will be written to the cluster, and no message deleted"
	}
	return ""
}

// logMessage logs what has happened to a message.
func logMessage(log *logrus.Entry, dryRun bool, r sqs.Report) {
	log = log.WithField("NTH_MESSAGE", r.Message)
	switch r.Outcome {
	case sqs.Poisoned:
		log.WithField(systemd.FieldMessageID, systemd.MessagePoisoned).
			Errorf("unrecognized message: %s; SQS will move it to the dead-letter queue", r.Why)
	case sqs.NotOurs:
		fate := "deleted it from the queue"
		if dryRun {
			fate = "left it in the queue, as this is a dry run"
		}
		log.Infof("ignored a message and %s: %s", fate, r.Why)
	case sqs.Lost:
		refused := map[sqs.Outcome]string{
			sqs.Deleted: "delete a finished message", sqs.Extended: "extend the visibility timeout of a message", sqs.Returned: "return a message to the queue",
		}[r.Refused]
		log.Warnf("SQS refused to %s: %s; SQS delivers the message again after its visibility timeout", refused, r.Why)
	case sqs.Received, sqs.Extended, sqs.Returned, sqs.Deleted:
		log.Debugf("a message was %s", r.Outcome)
	}
}

// count counts in the metrics what has happened to a message, and how long a message was in the queue before its first receipt.
func count(meter *metrics.Metrics, r sqs.Report) {
	meter.Message(string(r.Outcome))
	isFirst := r.Outcome == sqs.Received && r.Receives <= 1 // The age at a later receipt contains the time that an earlier receiver had it.
	if isFirst && !r.Sent.IsZero() {
		meter.Received(time.Since(r.Sent))
	}
}

// policyOf turns the settings into the rules for all kinds of events. None needs a WithdrawnAfter: pkg/fleet also passes on the events for which
// something was done before, until EC2 or Auto Scaling says that they are over. docs/configuration-queue.md has the budgets.
func policyOf(c config.QueueEvents) policy.Settings {
	rules := daemon.Rules(c.Announced)
	rules[event.ReservationEnd] = policy.Rule{Action: policy.Action(c.ReservationEnd.Action), Hard: true, Budget: 10 * time.Minute}
	rules[event.StateChange] = policy.Rule{Action: policy.Action(c.StateChange.Action), Hard: true, Budget: 5 * time.Minute}
	rules[event.StatusCheck] = policy.Rule{Action: policy.Action(c.StatusCheck.Action), Budget: 15 * time.Minute}
	return rules
}

// clusterOf returns this cluster's name in the tags of its instances. Unless it is a setting of its own, it is what managed_tag ends with; "" if
// neither names the cluster.
func clusterOf(c config.Fleet) string {
	if name, ok := strings.CutPrefix(c.ManagedTag, ec2.ClusterTag); ok && c.Cluster == "" {
		return name
	}
	return c.Cluster
}

// evictionsAtOnce is how many evictions are requested at the same time. So many keep an API server busy, and it still answers each in time. On a
// control plane with two processors, fewer make the last pod leave later, and more delay the cordons of other nodes.
const evictionsAtOnce = 100

// impairedFor is how long EC2's status check must have failed before an instance counts as impaired.
const impairedFor = 5 * time.Minute

// rulesOf turns the settings into the rules of the fleet: of the policy, of drains, and how many nodes are drained at once.
func rulesOf(cfg config.Queue) fleet.Rules {
	options := daemon.DrainOptions(cfg.Drain)
	options.Gate = kube.NewGate(evictionsAtOnce) // All drains share it.
	return fleet.Rules{
		Policy: policyOf(cfg.Events), Drain: options,
		Limits: fleet.Limits{Draining: cfg.Fleet.MaxDraining, Group: cfg.Fleet.MaxPerGroup}, Impaired: impairedFor,
		Finish: fleet.Finish(cfg.Events.ScheduledMaintenance.Finish),
	}
}

// awsConfig returns an AWS configuration that takes credentials from where AWS's programs look for them: the role of an instance, a service account
// or a pod, or the environment. It fetches no credentials yet. The region is from the URL of the queue, or else from the environment.
func awsConfig(ctx context.Context, cfg config.Queue) (aws.Config, error) {
	options := []func(*awsconfig.LoadOptions) error{awsconfig.WithLogger(logging.Nop{})} // The SDK also returns the errors that it would log.
	if region := sqs.ParseURL(cfg.Queue.URL).Region; region != "" {
		options = append(options, awsconfig.WithRegion(region))
	}
	found, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("cannot load the AWS configuration of the environment variables and ~/.aws: %w", err)
	}
	found.HTTPClient = role.Unhurried(found.HTTPClient)
	return found, nil
}

// connect makes a client of the API server, and sends no request yet. Unless requested is nil, the client calls it after each request.
func connect(cfg config.Queue, requested func(method string, status int)) (*identity.Client, error) {
	version, _ := cli.BuildVersion()
	options := identity.ClientOptions{UserAgent: "nth-queue/" + version, Requested: requested}
	return identity.Connect(cfg.Kubernetes.Kubeconfig, options)
}

// cluster has clients of the API server that share no connection. So the renewal of the Lease does not queue behind the drains, and the drains do
// not queue behind notices.
type cluster struct{ drains, lease, notices *identity.Client }

// reachCluster makes three clients of the API server, each with connections of its own.
func reachCluster(cfg config.Queue, requested func(method string, status int)) (to cluster, err error) {
	for _, client := range []**identity.Client{&to.drains, &to.lease, &to.notices} {
		if *client, err = connect(cfg, requested); err != nil {
			return cluster{}, err
		}
	}
	return to, nil
}

// leaseOf names the Lease by which one of the processes that read a queue leads. The name is also in the annotation of each cordon. It is the same
// for all forms of the queue's URL: the processes may be configured with different endpoints of SQS.
func leaseOf(address, region string) string {
	sum := sha256.Sum256([]byte(cmp.Or(sqs.ParseURL(address).Resource(region), address)))
	return "nth-queue-" + hex.EncodeToString(sum[:4])
}

// leaseIdentity names this process in the Lease: by the host or pod, for operators, and by random characters, so that no other process has the name.
func leaseIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the host name, which is to identify this process in the leader-election Lease: %w", err)
	}
	return host + "_" + strings.ToLower(rand.Text()[:8]), nil
}

// ownPod returns the pod that this process runs in. It is read from environment variables of the manifest; all fields are "" outside of a pod.
func ownPod() fleet.OwnPod {
	return fleet.OwnPod{Node: os.Getenv("NODE_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME")}
}

// newHooks returns the client that holds and completes lifecycle hooks with this AWS configuration. It logs the outcomes, and counts the requests.
func newHooks(cfg config.Queue, account aws.Config, meter *metrics.Metrics, log *logrus.Entry) *asg.HookClient {
	return asg.NewHookClient(asg.HookClientOptions{
		AWS: account, Queue: sqs.ParseURL(cfg.Queue.URL).Resource(account.Region), Requested: daemon.CountHooks(meter),
		Report: func(n asg.HookReport) { daemon.LogHook(log, n) },
	}, hookSettings(cfg))
}

// hookSettings returns the settings for the lifecycle hooks of terminations and launches.
func hookSettings(cfg config.Queue) asg.Settings {
	hooks := daemon.Hooks(cfg.Events.ASGTermination)
	hooks.LaunchHooks = cfg.Fleet.LaunchHooks
	return hooks
}
