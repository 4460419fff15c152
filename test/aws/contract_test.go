package aws_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// callers are the packages of nth-queue that call AWS, with the SDK's package for each service.
var callers = []string{"sqs", "ec2", "asg"}

// elsewhere are calls that the same packages make for nth on a node alone.
var elsewhere = []string{"autoscaling:DescribeAutoScalingInstances"}

// changes are the calls that change instances, for which there is a parameter.
var changes = []string{"ec2:RebootInstances", "ec2:StopInstances", "ec2:StartInstances", "ec2:TerminateInstances"}

// permissions are the actions of IAM that have another name than the call: whole batches go by that of one.
var permissions = map[string]string{
	"sqs:DeleteMessageBatch": "sqs:DeleteMessage", "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}

// calls reads from the source what nth-queue asks AWS for.
func calls(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, name := range callers {
		files, err := filepath.Glob(filepath.Join("../../pkg", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, input := range inputs(t, file, source) {
				found[input] = true
			}
		}
	}
	var all []string
	for call := range found {
		if slices.Contains(elsewhere, call) {
			continue
		}
		if permission, other := permissions[call]; other {
			call = permission
		}
		all = append(all, call)
	}
	return sorted(all)
}

// inputs lists the SDK's inputs that a file makes: sqs.ReceiveMessageInput is sqs:ReceiveMessage.
func inputs(t *testing.T, file string, source []byte) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(tree, func(n ast.Node) bool {
		literal, made := n.(*ast.CompositeLit)
		if !made {
			return true
		}
		if of, selected := literal.Type.(*ast.SelectorExpr); selected {
			service, _ := of.X.(*ast.Ident)
			if call, input := strings.CutSuffix(of.Sel.Name, "Input"); input && service != nil {
				all = append(all, service.Name+":"+call)
			}
		}
		return true
	})
	return all
}

func TestPolicy_AllowsWhatIsCalledAndNothingElse(t *testing.T) {
	t.Parallel()
	want := calls(t)
	if len(want) < 8 {
		t.Fatalf("the source calls %q only", want)
	}
	everyStack(t, func(t *testing.T, s *stack) {
		var allowed []string
		all := append(statements(t, s.property("ConsumerPolicy", "PolicyDocument")), statements(t, s.property("HooksPolicy", "PolicyDocument"))...)
		if s.resources["FinishPolicy"] != nil {
			all = append(all, statements(t, s.property("FinishPolicy", "PolicyDocument"))...)
		}
		for _, statement := range all {
			if statement["Effect"] != "Allow" || statement["Resource"] == "*" && statement["Sid"] != "AskAboutInstances" {
				t.Errorf("it has the statement %v", statement)
			}
			allowed = append(allowed, texts(statement["Action"])...)
		}
		want := slices.Clone(want)
		if s.parameters["FinishMaintenance"] == "false" {
			want = slices.DeleteFunc(want, func(call string) bool { return slices.Contains(changes, call) })
		}
		if s.parameters["Encryption"] == "KMS" {
			want = append(want, "kms:Decrypt")
		}
		if !slices.Equal(sorted(allowed), sorted(want)) {
			t.Errorf("CloudFormation allows\n%q, want\n%q", sorted(allowed), sorted(want))
		}
	})
	want = append(want, "kms:Decrypt") // in a statement that is there with a key only
	if allowed := actions(t, readModule(t), "consumer"); !slices.Equal(sorted(allowed), sorted(want)) {
		t.Errorf("Terraform allows\n%q, want\n%q", sorted(allowed), sorted(want))
	}
}

func TestPolicy_IsListedInTheManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- permissions -->")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	var listed []string
	for _, found := range regexp.MustCompile("`([a-z0-9]+:[A-Z][A-Za-z]+)`").FindAllStringSubmatch(table, -1) {
		listed = append(listed, found[1])
	}
	if want := append(calls(t), "kms:Decrypt"); !slices.Equal(sorted(listed), sorted(want)) {
		t.Errorf("docs/queue.md lists\n%q, want\n%q", sorted(listed), sorted(want))
	}
}

// kindsOf are the kinds of events that a pattern lets through, as "aws.ec2/EC2 Spot Instance Interruption Warning".
func kindsOf(t *testing.T, pattern string) (kinds []string) {
	t.Helper()
	var p struct {
		Source     []string `json:"source"`
		DetailType []string `json:"detail-type"`
	}
	if err := json.Unmarshal([]byte(pattern), &p); err != nil {
		t.Fatal(err)
	}
	for _, source := range p.Source {
		for _, detailType := range p.DetailType {
			kinds = append(kinds, source+"/"+detailType)
		}
	}
	return kinds
}

func TestRules_AreTheSameInBothTemplates(t *testing.T) {
	t.Parallel()
	blocks := readModule(t)
	everyStack(t, func(t *testing.T, s *stack) {
		made, delivery := map[string]string{}, map[string]string{}
		for name, resource := range s.resources {
			if resource.(map[string]any)["Type"] == "AWS::Events::Rule" {
				text, err := json.Marshal(s.property(name, "EventPattern"))
				if err != nil {
					t.Fatal(err)
				}
				short := strings.TrimPrefix(fmt.Sprint(s.property(name, "Name")), "nth-queue-")
				made[short], delivery[short] = string(text), fmt.Sprint(s.property(name, "Targets"))
			}
		}
		want, tried := rules(t, blocks, s.parameters["StateChanges"] == "true", s.parameters["LaunchHooks"] == "true")
		for name, seconds := range tried {
			if target := fmt.Sprintf("[map[Arn:<Queue.Arn> DeadLetterConfig:map[Arn:<Undelivered.Arn>] Id:queue "+
				"RetryPolicy:map[MaximumEventAgeInSeconds:%d MaximumRetryAttempts:185]]]", seconds); delivery[name] != target {
				t.Errorf("%s goes to\n%s, want\n%s", name, delivery[name], target)
			}
		}
		if !maps.Equal(made, want) {
			t.Errorf("CloudFormation makes the rules\n%v, and Terraform\n%v", made, want)
		}
	})
}

// The source names each kind in full.
func TestRules_LetThroughWhatIsReadAndNothingElse(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../pkg/sqs/parse.go")
	if err != nil {
		t.Fatal(err)
	}
	var understood, through []string
	for _, found := range regexp.MustCompile(`"(aws\.\w+/[^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		understood = append(understood, found[1])
	}
	patterns, _ := rules(t, readModule(t), true, true)
	for _, pattern := range patterns {
		through = append(through, kindsOf(t, pattern)...)
	}
	if len(understood) < 8 || !slices.Equal(sorted(through), sorted(understood)) {
		t.Errorf("the rules let through\n%q, and read are\n%q", sorted(through), sorted(understood))
	}
}
