# The worker, the sweeper and the triggers, from one package.

resource "aws_cloudwatch_log_group" "functions" {
  for_each = local.function_names

  name              = "/aws/lambda/${each.value}"
  retention_in_days = var.log_retention_days
  kms_key_id        = aws_kms_key.lifebook.arn
}

resource "aws_lambda_function" "worker" {
  #checkov:skip=CKV_AWS_115:Reserved concurrency throttles calls, which count as receives; maximum_concurrency bounds them
  #checkov:skip=CKV_AWS_116:Its source is a queue, which has a dead-letter queue of its own
  #checkov:skip=CKV_AWS_117:It reaches AWS alone; whether steps need a VPC is for the workflows to say
  #checkov:skip=CKV_AWS_272:Whether packages are signed is for the account to say
  function_name    = local.function_names.worker
  role             = aws_iam_role.worker.arn
  runtime          = var.python_runtime
  handler          = "lucius.lifebook.aws_lambda.handler"
  filename         = var.package_file
  source_code_hash = filebase64sha256(var.package_file)
  timeout          = var.function_timeout_seconds
  memory_size      = var.function_memory_mb
  kms_key_arn      = aws_kms_key.lifebook.arn

  environment {
    variables = local.environment
  }

  tracing_config {
    mode = "Active"
  }

  depends_on = [aws_cloudwatch_log_group.functions]
}

resource "aws_lambda_event_source_mapping" "jobs" {
  event_source_arn        = aws_sqs_queue.jobs.arn
  function_name           = aws_lambda_function.worker.arn
  batch_size              = var.batch_size
  function_response_types = ["ReportBatchItemFailures"]

  scaling_config {
    maximum_concurrency = var.maximum_concurrency
  }
}

resource "aws_lambda_function" "sweep" {
  #checkov:skip=CKV_AWS_115:A schedule starts it once a minute; two at a time do no harm
  #checkov:skip=CKV_AWS_116:A sweep that fails is followed by the next
  #checkov:skip=CKV_AWS_117:It reaches AWS alone
  #checkov:skip=CKV_AWS_272:Whether packages are signed is for the account to say
  function_name    = local.function_names.sweep
  role             = aws_iam_role.worker.arn
  runtime          = var.python_runtime
  handler          = "lucius.lifebook.aws_lambda.sweep"
  filename         = var.package_file
  source_code_hash = filebase64sha256(var.package_file)
  timeout          = 120
  memory_size      = var.function_memory_mb
  kms_key_arn      = aws_kms_key.lifebook.arn

  environment {
    variables = local.environment
  }

  tracing_config {
    mode = "Active"
  }

  depends_on = [aws_cloudwatch_log_group.functions]
}

resource "aws_scheduler_schedule" "sweep" {
  name                = "lifebook-orchestrator-sweep"
  schedule_expression = "rate(1 minute)"
  kms_key_arn         = aws_kms_key.lifebook.arn

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = aws_lambda_function.sweep.arn
    role_arn = aws_iam_role.scheduler.arn

    retry_policy {
      maximum_retry_attempts = 0
    }
  }
}

resource "aws_lambda_function" "trigger" {
  #checkov:skip=CKV_AWS_115:What starts runs must not be throttled away
  #checkov:skip=CKV_AWS_117:It reaches AWS alone
  #checkov:skip=CKV_AWS_272:Whether packages are signed is for the account to say
  function_name    = local.function_names.trigger
  role             = aws_iam_role.trigger.arn
  runtime          = var.python_runtime
  handler          = "lucius.lifebook.aws_lambda.trigger"
  filename         = var.package_file
  source_code_hash = filebase64sha256(var.package_file)
  timeout          = 60
  memory_size      = var.function_memory_mb
  kms_key_arn      = aws_kms_key.lifebook.arn

  dead_letter_config {
    target_arn = aws_sqs_queue.triggers_dead.arn
  }

  environment {
    variables = local.environment
  }

  tracing_config {
    mode = "Active"
  }

  depends_on = [aws_cloudwatch_log_group.functions]
}

# Events that could not start a run.
resource "aws_sqs_queue" "triggers_dead" {
  name                      = "lifebook-orchestrator-triggers-dlq"
  message_retention_seconds = 1209600
  kms_master_key_id         = aws_kms_key.lifebook.arn
}

resource "aws_lambda_permission" "file_drop" {
  for_each = toset(var.file_drop_buckets)

  statement_id   = "file-drop-${each.value}"
  action         = "lambda:InvokeFunction"
  function_name  = aws_lambda_function.trigger.function_name
  principal      = "s3.amazonaws.com"
  source_arn     = "arn:${data.aws_partition.current.partition}:s3:::${each.value}"
  source_account = data.aws_caller_identity.current.account_id
}

resource "aws_s3_bucket_notification" "file_drop" {
  for_each = toset(var.file_drop_buckets)

  bucket = each.value

  lambda_function {
    lambda_function_arn = aws_lambda_function.trigger.arn
    events              = ["s3:ObjectCreated:*"]
  }

  depends_on = [aws_lambda_permission.file_drop]
}
