package aws_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// everyStack makes a stack for each combination of what can be chosen.
func everyStack(t *testing.T, judge func(t *testing.T, s *stack)) {
	t.Helper()
	tpl := readTemplate(t)
	combinations := []map[string]string{{}}
	for _, name := range slices.Sorted(maps.Keys(tpl.Parameters)) {
		choices := tpl.Parameters[name].AllowedValues
		switch name {
		case "ClusterName":
			choices = []any{"", "blue"}
		case "ManagedTag":
			choices = []any{"", "nth/managed"}
		case "Sender":
			choices = []any{"", "arn:aws:iam::123456789012:role/tester"}
		case "OIDCProvider":
			choices = []any{"oidc.eks.eu-central-1.amazonaws.com/id/0123456789ABCDEF"}
		}
		if len(choices) == 0 {
			continue
		}
		var more []map[string]string
		for _, before := range combinations {
			for _, choice := range choices {
				next := maps.Clone(before)
				next[name] = fmt.Sprint(choice)
				more = append(more, next)
			}
		}
		combinations = more
	}
	for _, parameters := range combinations {
		t.Run(fmt.Sprint(parameters), func(t *testing.T) { judge(t, tpl.make(parameters)) })
	}
	if len(combinations) != 512 {
		t.Errorf("there are %d combinations, want 512", len(combinations))
	}
}

func TestTemplate_RefersToWhatIsThere(t *testing.T) {
	t.Parallel()
	everyStack(t, func(t *testing.T, s *stack) {
		for _, fault := range s.faults {
			t.Error(fault)
		}
	})
}

// statements are those of a policy, which may be text.
func statements(t *testing.T, policy any) []map[string]any {
	t.Helper()
	if text, written := policy.(string); written {
		if err := json.Unmarshal([]byte(text), &policy); err != nil {
			t.Fatalf("a policy is no JSON: %v\n%s", err, text)
		}
	}
	document := policy.(map[string]any)
	if document["Version"] != "2012-10-17" {
		t.Errorf("a policy has the version %v", document["Version"])
	}
	var all []map[string]any
	for _, one := range document["Statement"].([]any) {
		all = append(all, one.(map[string]any))
	}
	return all
}

func (s *stack) property(resource, property string) any {
	return s.resources[resource].(map[string]any)["Properties"].(map[string]any)[property]
}

func TestQueuePolicy_DeniesAllButTheRules(t *testing.T) {
	t.Parallel()
	everyStack(t, func(t *testing.T, s *stack) {
		var rules []string
		for name, resource := range s.resources {
			if resource.(map[string]any)["Type"] == "AWS::Events::Rule" {
				rules = append(rules, "<"+name+".Arn>")
			}
		}
		slices.Sort(rules)
		except := ""
		if sender := s.parameters["Sender"]; sender != "" {
			except = " ArnNotLike:map[aws:PrincipalArn:" + sender + "]"
		}
		byRules := fmt.Sprintf("map[aws:SourceArn:%v]", rules)
		const inTheClear = "Deny * sqs:* map[Bool:map[aws:SecureTransport:false]]"
		for queue, want := range map[string][]string{
			"Queue": {
				"Allow map[Service:events.amazonaws.com] sqs:SendMessage map[ArnEquals:" + byRules + "]",
				"Deny * sqs:SendMessage map[ArnNotEquals:" + byRules + except + "]", inTheClear,
			},
			"Undelivered": {
				"Allow map[Service:events.amazonaws.com] sqs:SendMessage map[ArnEquals:" + byRules + "]",
				"Deny * sqs:SendMessage map[ArnNotEquals:" + byRules + "]", inTheClear,
			},
			"DeadLetters": {"Deny * sqs:SendMessage map[BoolIfExists:map[aws:PrincipalIsAWSService:false]]", inTheClear},
		} {
			var got []string
			for _, statement := range statements(t, s.property(queue+"Policy", "PolicyDocument")) {
				for _, condition := range statement["Condition"].(map[string]any) {
					if sources, listed := condition.(map[string]any)["aws:SourceArn"].([]any); listed {
						condition.(map[string]any)["aws:SourceArn"] = sorted(texts(sources))
					}
				}
				if statement["Resource"] != "<"+queue+".Arn>" {
					t.Errorf("the policy of %s is about %v", queue, statement["Resource"])
				}
				got = append(got, fmt.Sprint(statement["Effect"], " ", statement["Principal"], " ", statement["Action"], " ", statement["Condition"]))
			}
			if policies := fmt.Sprint(s.property(queue+"Policy", "Queues")); policies != "[<"+queue+">]" || !slices.Equal(got, want) {
				t.Errorf("the policy of %s is\n%q, want\n%q", policies, got, want)
			}
		}
	})
}

func TestOIDCProvider_IsAnyIssuerWithoutScheme(t *testing.T) {
	t.Parallel()
	variable := regexp.MustCompile(`regex\("(.+)", var[.]oidc_provider`).FindSubmatch(read(t, "terraform/variables.tf"))
	if variable == nil {
		t.Fatal("Terraform judges no oidc_provider")
	}
	for _, pattern := range []string{"^" + readTemplate(t).Parameters["OIDCProvider"].AllowedPattern + "$", string(variable[1])} {
		allowed := regexp.MustCompile(pattern)
		for provider, want := range map[string]bool{
			"": true,
			"oidc.eks.eu-central-1.amazonaws.com/id/0123456789ABCDEF":  true,
			"oidc.eks.cn-north-1.amazonaws.com.cn/id/0123456789ABCDEF": true,
			"oidc-eks.eu-central-1.api.aws/id/0123456789ABCDEF":        true,
			"clusters.s3.amazonaws.com/blue":                           true,
			"issuer.example.com":                                       true,
			"https://issuer.example.com":                               false,
			`issuer.example.com":"x`:                                   false,
			"issuer":                                                   false,
		} {
			if got := allowed.MatchString(provider); got != want {
				t.Errorf("%s allows %q: %t, want %t", pattern, provider, got, want)
			}
		}
	}
}

func TestHooksPolicy_IsForTaggedGroupsWhereATagIsNamed(t *testing.T) {
	t.Parallel()
	everyStack(t, func(t *testing.T, s *stack) {
		want := "<nil>"
		if tag := s.parameters["ManagedTag"]; tag != "" {
			want = "map[Null:map[aws:ResourceTag/" + tag + ":false]]"
		}
		hooks := statements(t, s.property("HooksPolicy", "PolicyDocument"))
		if got := fmt.Sprint(hooks[0]["Condition"]); len(hooks) != 1 || got != want {
			t.Errorf("hooks are answered under the condition %s, want %s", got, want)
		}
		if resource := fmt.Sprint(hooks[0]["Resource"]); !strings.HasSuffix(resource, ":autoScalingGroupName/*") || strings.HasPrefix(resource, "*") {
			t.Errorf("hooks of %s are answered", resource)
		}
	})
}

func TestQueues_AreEncryptedByOneOfTwoKeys(t *testing.T) {
	t.Parallel()
	everyStack(t, func(t *testing.T, s *stack) {
		for _, queue := range []string{"Queue", "DeadLetters", "Undelivered"} {
			managed, key := s.property(queue, "SqsManagedSseEnabled"), s.property(queue, "KmsMasterKeyId")
			if s.parameters["Encryption"] == "KMS" {
				if managed != nil || key != "<Key.Arn>" {
					t.Errorf("%s has the keys %v and %v", queue, managed, key)
				}
			} else if managed != true || key != nil {
				t.Errorf("%s has the keys %v and %v", queue, managed, key)
			}
		}
		if redrive := fmt.Sprint(s.property("Queue", "RedrivePolicy")); redrive != "map[deadLetterTargetArn:<DeadLetters.Arn> maxReceiveCount:100]" {
			t.Errorf("dead letters go by %s", redrive)
		}
		if _, ok := s.resources["Key"]; !ok {
			return
		}
		writes := statements(t, s.property("Key", "KeyPolicy"))[1]
		if got := fmt.Sprint(writes["Principal"], writes["Action"]); got != "map[Service:events.amazonaws.com] [kms:Decrypt kms:GenerateDataKey]" {
			t.Errorf("the key's policy lets EventBridge do %s", got)
		}
	})
}

func TestRole_TrustsOnlyWhatReadsTheQueue(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"instance":        "InstanceRole map[Service:ec2.amazonaws.com]",
		"service-account": "ServiceAccountRole map[Federated:arn:aws:iam::123456789012:oidc-provider/oidc.eks.eu-central-1.amazonaws.com/id/0123456789ABCDEF]",
		"pod-identity":    "PodRole map[Service:pods.eks.amazonaws.com]",
		"none":            "",
	}
	everyStack(t, func(t *testing.T, s *stack) {
		got := ""
		for name, resource := range s.resources {
			if resource.(map[string]any)["Type"] == "AWS::IAM::Role" {
				trust := statements(t, s.property(name, "AssumeRolePolicyDocument"))
				got += fmt.Sprint(name, " ", trust[0]["Principal"])
				if name == "ServiceAccountRole" && !strings.Contains(fmt.Sprint(trust[0]["Condition"]),
					"EF:sub:system:serviceaccount:kube-system:nth-queue") {
					t.Errorf("it trusts by %v", trust[0]["Condition"])
				}
				want := []string{"<ConsumerPolicy>", "<HooksPolicy>"}
				if s.parameters["FinishMaintenance"] == "true" {
					want = append(want, "<FinishPolicy>")
				}
				if policies := texts(s.property(name, "ManagedPolicyArns")); !slices.Equal(policies, want) {
					t.Errorf("%s has the policies %q", name, policies)
				}
			}
		}
		if got != want[s.parameters["Consumer"]] {
			t.Errorf("roles and whom they trust are %q, want %q", got, want[s.parameters["Consumer"]])
		}
	})
}
