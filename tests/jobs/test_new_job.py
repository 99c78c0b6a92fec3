"""Where the steps of a job keep their artifacts."""

from lucius.jobs.new_job import refs_of_steps


def test_steps_of_one_type_never_share_a_folder() -> None:
    refs = refs_of_steps("s3://w/job_1/", ["OCR", "EMBEDDING", "ocr", "EMBEDDING"])
    assert [ref["uri"] for ref in refs] == [
        "s3://w/job_1/",
        "s3://w/job_1/",
        "s3://w/job_1/step_03/",
        "s3://w/job_1/step_04/",
    ]
