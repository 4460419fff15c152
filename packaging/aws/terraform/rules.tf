# What fills the queue.

# Each is tried for as long as it may still be of use: what ends a machine in two minutes for five.
locals {
  rules = {
    spot = {
      description = "EC2 takes a spot instance back in two minutes"
      wanted      = true
      seconds     = 300
      pattern = {
        source        = ["aws.ec2"]
        "detail-type" = ["EC2 Spot Instance Interruption Warning"]
      }
    }
    rebalance = {
      description = "A spot instance runs an elevated risk of interruption"
      wanted      = true
      seconds     = 3600
      pattern = {
        source        = ["aws.ec2"]
        "detail-type" = ["EC2 Instance Rebalance Recommendation"]
      }
    }
    state = {
      description = "An instance stops, terminates or runs again"
      wanted      = var.state_changes
      seconds     = 3600
      pattern = {
        source        = ["aws.ec2"]
        "detail-type" = ["EC2 Instance State-change Notification"]
        detail        = { state = ["stopping", "stopped", "shutting-down", "terminated", "running"] }
      }
    }
    # AWS's pages have had two names for each of them; both are read.
    reservation = {
      description = "A Capacity Block or an interruptible Capacity Reservation comes to its end"
      wanted      = true
      seconds     = 3600
      pattern = {
        source = ["aws.ec2"]
        "detail-type" = [
          "Capacity Block Expiration Warning",
          "Capacity Block Reservation Expiration Warning",
          "EC2 Capacity Reservation Instance Interruption Warning",
          "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
        ]
      }
    }
    terminate = {
      description = "An Auto Scaling group waits at a hook before it terminates an instance"
      wanted      = true
      seconds     = 3600
      pattern = {
        source        = ["aws.autoscaling"]
        "detail-type" = ["EC2 Instance-terminate Lifecycle Action"]
      }
    }
    launch = {
      description = "An Auto Scaling group waits at a hook before a new instance counts as in service"
      wanted      = var.launch_hooks
      seconds     = 3600
      pattern = {
        source        = ["aws.autoscaling"]
        "detail-type" = ["EC2 Instance-launch Lifecycle Action"]
      }
    }
  }

  # As text, since values of a map must be of one type.
  patterns = { for name, rule in local.rules : name => jsonencode(rule.pattern) if rule.wanted }
}

resource "aws_cloudwatch_event_rule" "this" {
  for_each = local.patterns

  name          = "${var.name}-${each.key}"
  description   = local.rules[each.key].description
  event_pattern = each.value
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "queue" {
  for_each = aws_cloudwatch_event_rule.this

  rule      = each.value.name
  target_id = "queue"
  arn       = aws_sqs_queue.interruptions.arn

  retry_policy {
    maximum_event_age_in_seconds = local.rules[each.key].seconds
    maximum_retry_attempts       = 185
  }

  dead_letter_config {
    arn = aws_sqs_queue.undelivered.arn
  }
}
