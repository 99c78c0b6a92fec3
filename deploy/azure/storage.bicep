// A storage account with the tables of both layouts of the ledger, and a container for what services make.

param name string
param location string
param tablePrefix string
param workspaceContainer string
param networkAccess string
param principalId string
param logs string

// As Lucius spells them in Azure, without the prefix and the Z after it.
var tables = [
  'luciusZ0ledger'
  'ZJobs'
  'ZSteps'
  'ZOutbox'
  'ZEvents'
  'jobZ1idempotency'
  'luciusZ0inflight'
  'luciusZ0jobZ0index'
  'luciusZ0due'
  'luciusZ0dispatch'
  'luciusZ0dlq'
  'luciusZ0retention'
  'luciusZ0webhooks'
  'luciusZ0meta'
]

// Storage Table Data Contributor
var tableContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'

// Storage Blob Data Contributor
var blobContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: name
  location: location
  kind: 'StorageV2'
  sku: {
    name: 'Standard_ZRS'
  }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    networkAcls: {
      defaultAction: networkAccess
      bypass: 'AzureServices'
    }
  }
}

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2023-05-01' = {
  parent: account
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2023-05-01' = [for tableName in tables: {
  parent: tableService
  name: '${tablePrefix}Z${tableName}'
}]

resource mayUseTables 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, principalId, tableContributor)
  scope: account
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableContributor)
  }
}

resource blobService 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: account
  name: 'default'
}

resource workspace 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: blobService
  name: workspaceContainer
  properties: {
    publicAccess: 'None'
  }
}

resource mayUseWorkspace 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(workspace.id, principalId, blobContributor)
  scope: workspace
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobContributor)
  }
}

// Of the tables deletions alone: a ledger is read and written all the time, and each time would be a line.
resource tableLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'lucius'
  scope: tableService
  properties: {
    workspaceId: logs
    logs: [
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
    metrics: [
      {
        category: 'Transaction'
        enabled: true
      }
    ]
  }
}

resource blobLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'lucius'
  scope: blobService
  properties: {
    workspaceId: logs
    logs: [
      {
        category: 'StorageRead'
        enabled: true
      }
      {
        category: 'StorageWrite'
        enabled: true
      }
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
    metrics: [
      {
        category: 'Transaction'
        enabled: true
      }
    ]
  }
}

output accountName string = account.name
output workspaceContainer string = workspace.name
output blobEndpoint string = account.properties.primaryEndpoints.blob
output workspaceRoot string = 'az://${workspace.name}'
output tableEndpoint string = account.properties.primaryEndpoints.table
