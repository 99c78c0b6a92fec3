# What each part may do, and nothing more.

data "aws_iam_policy_document" "lambda_assumes" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "scheduler_assumes" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["scheduler.amazonaws.com"]
    }
  }
}

# A key's policy speaks of the key it is attached to: that is what the star stands for.
data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109:The policy of a key names itself as the resource
  #checkov:skip=CKV_AWS_111:The policy of a key names itself as the resource
  #checkov:skip=CKV_AWS_356:The policy of a key names itself as the resource
  statement {
    sid       = "AccountDecides"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }

  statement {
    sid       = "LogsAndAlarms"
    actions   = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey*"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${var.region}.amazonaws.com", "cloudwatch.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "common" {
  #checkov:skip=CKV_AWS_111:X-Ray knows no resources to name
  #checkov:skip=CKV_AWS_356:X-Ray knows no resources to name
  statement {
    sid       = "Traces"
    actions   = ["xray:PutTelemetryRecords", "xray:PutTraceSegments"]
    resources = ["*"]
  }

  statement {
    sid     = "Jobs"
    actions = ["dynamodb:BatchGetItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query", "dynamodb:UpdateItem"]
    resources = [
      aws_dynamodb_table.jobs.arn,
      "${aws_dynamodb_table.jobs.arn}/index/*",
      aws_dynamodb_table.balances.arn,
    ]
  }

  statement {
    sid       = "Send"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.jobs.arn]
  }

  statement {
    sid       = "Key"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.lifebook.arn]
  }

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = [for group in aws_cloudwatch_log_group.functions : "${group.arn}:*"]
  }
}

data "aws_iam_policy_document" "worker" {
  source_policy_documents = [data.aws_iam_policy_document.common.json]

  statement {
    sid       = "Queue"
    actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
    resources = [aws_sqs_queue.jobs.arn]
  }

  statement {
    sid       = "DeadLetters"
    actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage", "sqs:SendMessage"]
    resources = [aws_sqs_queue.dead.arn]
  }

  statement {
    sid       = "Analytics"
    actions   = ["events:PutEvents"]
    resources = ["arn:${data.aws_partition.current.partition}:events:${var.region}:${data.aws_caller_identity.current.account_id}:event-bus/${var.analytics_bus}"]
  }
}

data "aws_iam_policy_document" "trigger" {
  source_policy_documents = [data.aws_iam_policy_document.common.json]

  statement {
    sid       = "DeadLetters"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.triggers_dead.arn]
  }
}

data "aws_iam_policy_document" "scheduler" {
  statement {
    actions   = ["lambda:InvokeFunction"]
    resources = [aws_lambda_function.sweep.arn]
  }

  statement {
    actions   = ["kms:Decrypt"]
    resources = [aws_kms_key.lifebook.arn]
  }
}

resource "aws_iam_role" "worker" {
  name               = "lifebook-orchestrator-worker"
  assume_role_policy = data.aws_iam_policy_document.lambda_assumes.json
}

resource "aws_iam_role_policy" "worker" {
  name   = "lifebook"
  role   = aws_iam_role.worker.id
  policy = data.aws_iam_policy_document.worker.json
}

resource "aws_iam_role" "trigger" {
  name               = "lifebook-orchestrator-trigger"
  assume_role_policy = data.aws_iam_policy_document.lambda_assumes.json
}

resource "aws_iam_role_policy" "trigger" {
  name   = "lifebook"
  role   = aws_iam_role.trigger.id
  policy = data.aws_iam_policy_document.trigger.json
}

resource "aws_iam_role" "scheduler" {
  name               = "lifebook-orchestrator-scheduler"
  assume_role_policy = data.aws_iam_policy_document.scheduler_assumes.json
}

resource "aws_iam_role_policy" "scheduler" {
  name   = "lifebook"
  role   = aws_iam_role.scheduler.id
  policy = data.aws_iam_policy_document.scheduler.json
}
