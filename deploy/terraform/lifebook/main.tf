# The contract lifebook-orchestrator-jobs v1: table, queue, worker, alarm.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  function_names = {
    worker  = "lifebook-orchestrator-worker"
    sweep   = "lifebook-orchestrator-sweep"
    trigger = "lifebook-orchestrator-trigger"
  }

  # Six times the timeout of the function, so that a message does not come again while its call runs or is retried.
  visibility_seconds = 6 * var.function_timeout_seconds

  environment = {
    LIFEBOOK_TABLE        = aws_dynamodb_table.jobs.name
    LIFEBOOK_BALANCES     = aws_dynamodb_table.balances.name
    LIFEBOOK_QUEUE        = aws_sqs_queue.jobs.url
    LIFEBOOK_DLQ          = aws_sqs_queue.dead.url
    LIFEBOOK_CREDITS      = var.credits
    LIFEBOOK_RETENTION    = "${var.retention_days}d"
    LIFEBOOK_RECEIVES_MAX = tostring(var.max_receive_count)
    LIFEBOOK_ANALYTICS    = "events:${var.analytics_bus}"
    LIFEBOOK_WORKFLOWS    = join(",", var.workflow_modules)
    LIFEBOOK_FILE_DROPS   = length(var.file_drops) == 0 ? "" : jsonencode(var.file_drops)
  }
}

resource "aws_kms_key" "lifebook" {
  description             = "Encrypts the table, the queues and the logs of Lifebook"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "lifebook" {
  name          = "alias/lifebook"
  target_key_id = aws_kms_key.lifebook.key_id
}

resource "aws_dynamodb_table" "jobs" {
  name         = "lifebook-orchestrator-jobs"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "job_id"

  deletion_protection_enabled = true

  attribute {
    name = "job_id"
    type = "S"
  }

  attribute {
    name = "workspace_id"
    type = "S"
  }

  attribute {
    name = "created_at"
    type = "S"
  }

  attribute {
    name = "sweep_shard"
    type = "S"
  }

  attribute {
    name = "sweep_at"
    type = "N"
  }

  global_secondary_index {
    name               = "workspace_created_at"
    hash_key           = "workspace_id"
    range_key          = "created_at"
    projection_type    = "INCLUDE"
    non_key_attributes = ["status", "workflow_id", "trigger_type", "credits_estimate"]
  }

  # Sparse: only jobs and events that still have something to do are in it.
  global_secondary_index {
    name            = "sweep_shard_sweep_at"
    hash_key        = "sweep_shard"
    range_key       = "sweep_at"
    projection_type = "KEYS_ONLY"
  }

  ttl {
    attribute_name = "ttl_at"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = aws_kms_key.lifebook.arn
  }
}

resource "aws_dynamodb_table" "balances" {
  name         = "lifebook-orchestrator-balances"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "id"

  deletion_protection_enabled = true

  attribute {
    name = "id"
    type = "S"
  }

  # What is kept of a hold expires with its job; accounts have no such attribute and stay.
  ttl {
    attribute_name = "ttl_at"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = aws_kms_key.lifebook.arn
  }
}

resource "aws_sqs_queue" "dead" {
  name                      = "lifebook-orchestrator-dlq"
  message_retention_seconds = 1209600
  kms_master_key_id         = aws_kms_key.lifebook.arn
}

resource "aws_sqs_queue" "jobs" {
  name                       = "lifebook-orchestrator-queue"
  message_retention_seconds  = 1209600
  visibility_timeout_seconds = local.visibility_seconds
  receive_wait_time_seconds  = 20
  kms_master_key_id          = aws_kms_key.lifebook.arn

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = var.max_receive_count
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead" {
  queue_url = aws_sqs_queue.dead.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.jobs.arn]
  })
}

resource "aws_sns_topic" "alerts" {
  name              = "lifebook-alerts"
  kms_master_key_id = aws_kms_key.lifebook.arn
}

resource "aws_cloudwatch_metric_alarm" "dlq_depth" {
  alarm_name          = "lifebook-orchestrator-dlq-depth"
  alarm_description   = "Jobs are dead, or messages could not be read: see `lucius lifebook dlq`."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alerts.arn]
  ok_actions          = [aws_sns_topic.alerts.arn]
}
